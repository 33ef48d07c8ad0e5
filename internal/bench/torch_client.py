"""The benchmark's PyTorch client: requests (lc) of ResNet-50 or of a decoding transformer,
or batch work (be): training, or ResNet-50 in a loop. It prints the same lines of JSON as
giveway-bench and reads the same commands. It also computes checksums of work that is the same each time
(equal)."""

import argparse
import contextlib
import copy
import ctypes
import fcntl
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time


def send(**message):
    line = json.dumps(message) + "\n"
    with send.lock:
        try:
            sys.stdout.write(line)
            sys.stdout.flush()
        except BrokenPipeError:
            os._exit(0)


send.lock = threading.Lock()


def die_with_parent():
    try:
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass  # the process also exits at the end of its input


class Commands:
    """The commands of the harness: start, for lc; work and rest, for be."""

    def __init__(self, working):
        self.starts = []  # arguments of start that are not served yet
        self.changed = threading.Condition()
        self.working = working

    def read(self):
        """Exits at "quit" or the end of the input, even if the GPU hangs."""
        for line in sys.stdin:
            command, _, argument = line.strip().partition(" ")
            if command == "quit":
                break
            with self.changed:
                if command == "start":
                    self.starts.append(argument)
                elif command in ("work", "rest"):
                    self.working = command == "work"
                else:
                    send(error=f"read {line.strip()!r}: want start, work, rest or quit")
                    break
                self.changed.notify_all()
        os._exit(0)

    def next_start(self):
        with self.changed:
            self.changed.wait_for(lambda: self.starts)
            return self.starts.pop(0)

    def wait_for_work(self):
        with self.changed:
            self.changed.wait_for(lambda: self.working)


@contextlib.contextmanager
def warm_up_lock(path, exclusive):
    """Keeps other clients off the GPU while cuDNN measures which algorithms are fast."""
    if not path:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


def bottleneck(nn, into, mid, stride):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            out = 4 * mid
            self.body = nn.Sequential(
                nn.Conv2d(into, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
                nn.Conv2d(mid, mid, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
                nn.Conv2d(mid, out, 1, bias=False), nn.BatchNorm2d(out))
            self.short = nn.Identity()
            if stride != 1 or into != out:
                self.short = nn.Sequential(nn.Conv2d(into, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.body(x) + self.short(x))

    return Block()


def resnet50(nn):
    """torchvision's model if it is installed, else the same network, layer by layer."""
    try:
        from torchvision.models import resnet50 as model
        return model(weights=None)
    except Exception:
        pass
    layers = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, stride=2, padding=1)]
    into = 64
    for mid, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(bottleneck(nn, into, mid, stride if i == 0 else 1))
            into = 4 * mid
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*layers)


def resnet_request(torch, graph):
    """Returns a function that serves one request and returns when it is done."""
    torch.backends.cudnn.benchmark = True
    model = resnet50(torch.nn).cuda().half().eval()
    x = torch.randn(1, 3, 224, 224, device="cuda", dtype=torch.half)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(20):
            model(x)
    stream.synchronize()

    def eager():
        with torch.inference_mode(), torch.cuda.stream(stream):
            model(x)
        stream.synchronize()

    if not graph:
        return eager
    captured = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(captured, stream=stream):
        y = model(x)

    def replay():
        with torch.cuda.stream(stream):
            captured.replay()
        stream.synchronize()

    replay.keep = y
    return replay


def decoder(torch, blocks=24, width=2048, heads=16, cache=1024, words=32000):
    """Returns a function that decodes one token and returns it: a transformer in fp16,
    launched kernel by kernel, whose key-value cache is full. Each call depends on the
    last one's token."""
    functional, part = torch.nn.functional, width // heads
    like = {"device": "cuda", "dtype": torch.half}

    def weights(*shape):
        return torch.randn(*shape, **like) * 0.02

    class Block:
        def __init__(self):
            self.before, self.between = torch.ones(width, **like), torch.ones(width, **like)
            self.qkv, self.out = weights(3 * width, width), weights(width, width)
            self.up, self.down = weights(4 * width, width), weights(width, 4 * width)
            self.keys, self.values = weights(1, heads, cache, part), weights(1, heads, cache, part)

    with torch.inference_mode():
        layers = [Block() for _ in range(blocks)]
        embedding = torch.randn(words, width, **like)
    state = {"token": 1, "position": 0}

    def attend(layer, x, at):
        h = functional.rms_norm(x, (width,), layer.before)
        q, k, v = functional.linear(h, layer.qkv).view(1, 1, 3, heads, part).permute(2, 0, 3, 1, 4)
        layer.keys[:, :, at:at + 1] = k
        layer.values[:, :, at:at + 1] = v
        a = functional.scaled_dot_product_attention(q, layer.keys, layer.values)
        return functional.linear(a.transpose(1, 2).reshape(1, 1, width), layer.out)

    def decode():
        with torch.inference_mode():
            at = state["position"] % cache
            x = embedding[state["token"]].view(1, 1, width)
            for layer in layers:
                x = x + attend(layer, x, at)
                h = functional.rms_norm(x, (width,), layer.between)
                x = x + functional.linear(functional.gelu(functional.linear(h, layer.up)), layer.down)
            state["token"] = functional.linear(x, embedding).argmax(-1).item()
        state["position"] += 1
        return state["token"]

    def reset():
        state.update(token=1, position=0)
        with torch.inference_mode():
            for layer in layers:
                layer.keys.fill_(0.01)
                layer.values.fill_(0.01)

    decode.reset = reset
    return decode


def request(torch, mode):
    if mode == "decode":
        return decoder(torch)
    return resnet_request(torch, graph=mode == "graph")


def until(t):
    rest = t - time.monotonic()
    if rest > 0.001:
        time.sleep(rest - 0.001)
    while time.monotonic() < t:
        pass


def serve(do, period, seconds, seed):
    """Serves requests for that long. With a period it is an open loop: requests arrive at
    fixed times, or with a seed at random times at the same rate, and the latency includes
    the wait. Without a period each request follows the last at once."""
    samples, arrived, unfinished = [], [], 0
    rng = random.Random(seed)

    def gap():
        return rng.expovariate(1 / period) if seed and period else period

    start = time.monotonic()
    end, arrival = start + seconds, start + gap()
    while arrival < end:
        if time.monotonic() > end + seconds:
            unfinished += 1
        else:
            until(arrival)
            do()
            samples.append((time.monotonic() - arrival) * 1e6)
            arrived.append((arrival - start) * 1e6)
        arrival = arrival + gap() if period else time.monotonic()
    took = int((time.monotonic() - start) * 1e9)
    answered = {"samples_us": samples, "arrived_us": arrived, "unfinished": unfinished, "took_ns": took}
    if seed:
        answered["seed"] = seed
    send(pid=os.getpid(), answered=answered)


def ready(torch):
    # PyTorch for ROCm has the same functions; its version says which library is behind them.
    send(ready=True, pid=os.getpid(), gpu=torch.cuda.get_device_name(),
         cuda=torch.version.cuda or "", hip=getattr(torch.version, "hip", None) or "")


def lc(torch, args, commands):
    with warm_up_lock(args.lock, exclusive=True):
        do = request(torch, args.mode)
        for _ in range(50):
            do()
    ready(torch)
    while True:
        how = commands.next_start() if args.wait else ""
        serve(do, args.every_ms / 1e3, args.seconds, args.seed if how == "random" else 0)
        if not args.wait:
            return


def training(torch):
    """Returns a function that queues one step: 12 layers of width 1024, bf16, AdamW."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
    head = nn.Linear(1024, 1024).cuda()
    params = list(model.parameters()) + list(head.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-4)
    x = torch.randn(16, 512, 1024, device="cuda")
    y = torch.randn(16, 512, 1024, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(head(model(x)).float(), y)
        loss.backward()
        optimizer.step()

    return step


def inference(torch, size):
    """Returns a function that queues ResNet-50 for a batch of that size, launched kernel
    by kernel. cuDNN chooses algorithms by rule, so that all processes have the same."""
    model = resnet50(torch.nn).cuda().half().eval()
    x = torch.randn(size, 3, 224, 224, device="cuda", dtype=torch.half)

    def step():
        with torch.inference_mode():
            model(x)

    return step


def batch_work(torch, work):
    """Returns a function that queues one step, and how many steps to queue ahead."""
    if work == "small":  # launch-bound
        step = inference(torch, 1)
        return lambda: (step(), torch.cuda.synchronize()), 0
    if work == "big":
        return inference(torch, 64), 2
    return training(torch), 1  # one step ahead, so that the GPU never waits for Python


def be(torch, args, commands):
    with warm_up_lock(args.lock, exclusive=False):
        step, ahead = batch_work(torch, args.work)
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    state = {"done": 0, "last": time.monotonic()}
    start = time.monotonic()

    def send_progress():
        while True:
            time.sleep(0.1)
            done, last, now = state["done"], state["last"], time.monotonic()
            send(progress={"at_ns": int((now - start) * 1e9), "done": done, "idle_ns": int((now - last) * 1e9)})

    ready(torch)
    threading.Thread(target=send_progress, daemon=True).start()
    waiting = []

    def finish(all_but):
        while len(waiting) > all_but:
            waiting.pop(0).synchronize()
            state["last"] = time.monotonic()
            state["done"] += 1

    while True:
        if not commands.working:
            finish(0)
            commands.wait_for_work()
        step()
        event = torch.cuda.Event(blocking=True)
        event.record()
        waiting.append(event)
        finish(ahead)


def exact_inference(torch):
    """Returns a function that runs ResNet-50 on 20 inputs and returns its answers."""
    model = resnet50(torch.nn).cuda().eval()
    inputs = torch.randn(20, 1, 3, 224, 224, device="cuda")

    def run():
        with torch.inference_mode():
            return [model(x).cpu() for x in inputs]

    return run


def exact_decoding(torch):
    """Returns a function that decodes 40 tokens from the beginning and returns them."""
    decode = decoder(torch, blocks=12, words=8000)

    def run():
        decode.reset()
        return [torch.tensor([decode() for _ in range(40)])]

    return run


def exact_training(torch):
    """Returns a function that trains a network from the beginning for 20 steps and returns
    its losses and parameters. autograd launches from a thread of its own."""
    nn = torch.nn
    width = 512
    layers = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(12)]
    model = nn.Sequential(*layers).cuda()
    first = copy.deepcopy(model.state_dict())
    x = torch.randn(20, 64, width, device="cuda")

    def run():
        model.load_state_dict(first)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for part in x:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(model(part), part)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [torch.tensor(losses, dtype=torch.float64), *model.parameters()]

    return run


def checksum(tensors):
    """Copies tensors to the host, each by a call that waits, and returns a hash of all bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        host = tensor.detach().cpu().contiguous()
        digest.update(ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()))
    return digest.hexdigest()


def equal(torch, args, commands):
    """At each start, does the same work and sends the checksum of its results."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    run = {"inference": exact_inference, "decoding": exact_decoding, "training": exact_training}[args.exact](torch)
    run()
    torch.cuda.synchronize()
    ready(torch)
    while True:
        commands.next_start()
        send(pid=os.getpid(), checksum=checksum(run()))


def check():
    import torch
    if not torch.cuda.is_available():
        sys.exit("PyTorch " + torch.__version__ + " sees no GPU")
    print(torch.__version__)


def flags(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["check", "lc", "be", "equal"])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--mode", choices=["graph", "eager", "decode"], default="graph", help="request of lc")
    parser.add_argument("--every-ms", type=float, default=20, help="period of lc; 0: a loop that never rests")
    parser.add_argument("--seconds", type=float, default=10, help="length of a run of lc")
    parser.add_argument("--seed", type=int, default=1, help="of the random arrivals")
    parser.add_argument("--work", choices=["train", "small", "big"], default="train", help="work of be")
    parser.add_argument("--exact", choices=["inference", "decoding", "training"], default="inference", help="work of equal")
    parser.add_argument("--wait", action="store_true", help="begin at a command: start, or work")
    parser.add_argument("--lock", default="", help="file to lock while warming up")
    return parser.parse_args(words)


def main():
    args = flags(sys.argv[1:])
    if args.what == "check":
        return check()
    die_with_parent()
    commands = Commands(working=not args.wait)
    if args.wait or args.what != "lc":
        threading.Thread(target=commands.read, daemon=True).start()
    if args.what == "equal":  # cuBLAS reads it when it starts, and deterministic algorithms need it
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    try:
        import torch
        torch.cuda.set_device(args.device)
        {"lc": lc, "be": be, "equal": equal}[args.what](torch, args, commands)
    except Exception as e:  # the harness reads lines, not traces
        send(error=f"{type(e).__name__}: {e}"[:500])
        raise


if __name__ == "__main__":
    main()
