"""The benchmark's PyTorch client: ResNet-50 inference (lc) or transformer
training (be). It prints the same lines of JSON as giveway-bench."""

import argparse
import ctypes
import json
import os
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


def read_words(started):
    """Exits at "quit" or the end of the input, even if the GPU hangs."""
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        if line.strip() == "start":
            started.release()
    os._exit(0)


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


def request(torch, mode):
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

    if mode == "eager":
        return eager
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph, stream=stream):
        y = model(x)

    def replay():
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()

    replay.keep = y
    return replay


def until(t):
    rest = t - time.monotonic()
    if rest > 0.001:
        time.sleep(rest - 0.001)
    while time.monotonic() < t:
        pass


def serve(do, period, seconds):
    """Open loop: requests arrive at fixed times. The latency includes the wait."""
    samples, unfinished = [], 0
    start = time.monotonic()
    end, arrival = start + seconds, start + period
    while arrival < end:
        if time.monotonic() > end + seconds:
            unfinished += 1
        else:
            until(arrival)
            do()
            samples.append((time.monotonic() - arrival) * 1e6)
        arrival += period
    took = int((time.monotonic() - start) * 1e9)
    send(pid=os.getpid(), answered={"samples_us": samples, "unfinished": unfinished, "took_ns": took})


def ready(torch):
    send(ready=True, pid=os.getpid(), gpu=torch.cuda.get_device_name(), cuda=torch.version.cuda or "")


def lc(torch, args, started):
    do = request(torch, args.mode)
    for _ in range(50):
        do()
    ready(torch)
    while True:
        if args.wait:
            started.acquire()
        serve(do, args.every_ms / 1e3, args.seconds)
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


def be(torch, args, _started):
    step = training(torch)
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
    while True:
        step()
        event = torch.cuda.Event(blocking=True)
        event.record()
        waiting.append(event)
        if len(waiting) > 1:  # one step ahead, so that the GPU never waits for Python
            waiting.pop(0).synchronize()
            state["last"] = time.monotonic()
            state["done"] += 1


def check():
    import torch
    if not torch.cuda.is_available():
        sys.exit("PyTorch " + torch.__version__ + " sees no GPU")
    print(torch.__version__)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["check", "lc", "be"])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--mode", choices=["graph", "eager"], default="graph")
    parser.add_argument("--every-ms", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--wait", action="store_true")
    args = parser.parse_args()
    if args.what == "check":
        return check()
    die_with_parent()
    started = threading.Semaphore(0)
    if args.wait or args.what == "be":
        threading.Thread(target=read_words, args=(started,), daemon=True).start()
    try:
        import torch
        torch.cuda.set_device(args.device)
        {"lc": lc, "be": be}[args.what](torch, args, started)
    except Exception as e:  # the harness reads lines, not traces
        send(error=f"{type(e).__name__}: {e}"[:500])
        raise


if __name__ == "__main__":
    main()
