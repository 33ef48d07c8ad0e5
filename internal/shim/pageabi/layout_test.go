package pageabi

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// header is the part of shim/abi.h that this test understands: numbers, enums, and structs
// of numbers, arrays and other structs.
type header struct {
	numbers map[string]int64
	structs map[string]cStruct
}

type cStruct struct {
	fields      []cField
	size, align int64
}

type cField struct {
	name         string
	offset, size int64
}

var (
	comments = regexp.MustCompile(`(?s)/\*.*?\*/`)
	defines  = regexp.MustCompile(`(?m)^#define (GW_\w+) +(\S.*?) *$`)
	enums    = regexp.MustCompile(`(?s)enum \w+ \{(.*?)\}`)
	structs  = regexp.MustCompile(`(?s)struct (gw_\w+) \{(.*?)\n\};`)
	member   = regexp.MustCompile(`^(?:struct )?(\w+) (\w+)(?:\[(.+)\])?$`)
	names    = regexp.MustCompile(`\bGW_\w+`)
	suffix   = regexp.MustCompile(`\b(0x[0-9a-fA-F]+|\d+)(u|ull)\b`)
)

func readHeader(t *testing.T) *header {
	t.Helper()
	src, err := os.ReadFile("../../../shim/abi.h")
	if err != nil {
		t.Fatal(err)
	}
	text := comments.ReplaceAllString(string(src), "")
	h := &header{numbers: map[string]int64{}, structs: map[string]cStruct{}}
	for _, m := range defines.FindAllStringSubmatch(text, -1) {
		h.numbers[m[1]] = h.eval(t, m[2])
	}
	for _, m := range enums.FindAllStringSubmatch(text, -1) {
		next := int64(0)
		for item := range strings.SplitSeq(m[1], ",") {
			name, value, given := strings.Cut(strings.TrimSpace(item), " = ")
			if name == "" {
				continue
			}
			if given {
				next = h.eval(t, value)
			}
			h.numbers[name] = next
			next++
		}
	}
	for _, m := range structs.FindAllStringSubmatch(text, -1) {
		h.structs[m[1]] = h.layOut(t, m[2])
	}
	return h
}

func (h *header) eval(t *testing.T, expr string) int64 {
	t.Helper()
	expr = suffix.ReplaceAllString(expr, "$1")
	expr = names.ReplaceAllStringFunc(expr, func(name string) string { return fmt.Sprint(h.numbers[name]) })
	v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	n, exact := constant.Int64Val(v.Value)
	if !exact {
		t.Fatalf("%s is not an integer", expr)
	}
	return n
}

// layOut places the members as a C compiler does where a type is aligned to its size.
func (h *header) layOut(t *testing.T, body string) (s cStruct) {
	t.Helper()
	sizes := map[string]int64{"uint8_t": 1, "uint32_t": 4, "uint64_t": 8, "int64_t": 8}
	for line := range strings.SplitSeq(body, ";") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		m := member.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("cannot parse struct member %q", line)
		}
		size, align := sizes[m[1]], sizes[m[1]]
		if inner, ok := h.structs[m[1]]; ok {
			size, align = inner.size, inner.align
		}
		if size == 0 {
			t.Fatalf("%q: unknown type", line)
		}
		if m[3] != "" {
			size *= h.eval(t, m[3])
		}
		offset := (s.size + align - 1) / align * align
		s.fields = append(s.fields, cField{m[2], offset, size})
		s.size, s.align = offset+size, max(s.align, align)
	}
	s.size = (s.size + s.align - 1) / s.align * s.align
	return s
}

// TestLayoutEqualsHeader compares every struct with abi.h: the same fields, in the same
// places, of the same sizes, and no others.
func TestLayoutEqualsHeader(t *testing.T) {
	h := readHeader(t)
	ours := map[string]reflect.Type{
		"gw_request": reflect.TypeFor[Request](), "gw_hint": reflect.TypeFor[Hint](),
		"gw_gpu":  reflect.TypeFor[GPU](),
		"gw_page": reflect.TypeFor[Page](), "gw_status": reflect.TypeFor[Status](),
	}
	if len(h.structs) != len(ours) {
		t.Errorf("abi.h has %d structs, want %d", len(h.structs), len(ours))
	}
	for name, our := range ours {
		theirs, ok := h.structs[name]
		if !ok {
			t.Errorf("abi.h has no struct %s", name)
			continue
		}
		if int64(our.Size()) != theirs.size || our.NumField() != len(theirs.fields) {
			t.Errorf("%s: %d bytes in %d fields, want %d in %d", name, our.Size(), our.NumField(), theirs.size, len(theirs.fields))
			continue
		}
		for i, want := range theirs.fields {
			f := our.Field(i)
			got := cField{f.Tag.Get("c"), int64(f.Offset), int64(f.Type.Size())}
			if got != want {
				t.Errorf("%s: field %d is %+v, want %+v", name, i, got, want)
			}
		}
	}
}

// TestNumbersEqualHeader compares every constant with abi.h.
func TestNumbersEqualHeader(t *testing.T) {
	ours := map[string]int64{
		"GW_ABI": Version, "GW_ABI_LOWEST": LowestVersion, "GW_MAGIC": Magic, "GW_PAGE_SIZE": PageSize, "GW_STATUS_SIZE": StatusSize, "GW_DOORBELL_FLAGS": DoorbellFlags,
		"GW_MAX_LEASE_NS": MaxLeaseNS, "GW_REQUEST_ENTRIES": RequestEntries, "GW_HINT_ENTRIES": HintEntries, "GW_GPU_ENTRIES": GPUEntries,
		"GW_RATIO_ENTRIES": RatioEntries, "GW_RATIO_FIRST": RatioFirst, "GW_RATIO_STEP": RatioStep,
		"GW_GATE_OPEN": GateOpen, "GW_GATE_CLOSED": GateClosed,
		"GW_WATCH_READY": WatchReady, "GW_WATCH_REQUESTS": WatchRequests, "GW_PREDICT_ARRIVALS": PredictArrivals,
		"GW_LOG_REQUESTS": LogRequests, "GW_EXPLICIT_REQUESTS": ExplicitRequests,
		"GW_LATE_OFF": LateOff, "GW_LATE_AUTO": LateAuto, "GW_LATE_ON": LateOn,
		"GW_READY": Ready, "GW_HELD": Held, "GW_CAPTURING": Capturing, "GW_WAITS_LATE": WaitsLate,
		"GW_HINT_CLASS": int64(HintClass), "GW_HINT_PRIORITY": int64(HintPriority), "GW_HINT_WEIGHT": int64(HintWeight),
		"GW_HINT_DEADLINE": int64(HintDeadline), "GW_HINT_LAXITY": int64(HintLaxity), "GW_HINT_WORK": int64(HintWork),
		"GW_HINT_EXPECT": int64(HintExpect), "GW_HINT_SLO": int64(HintSLO), "GW_HINT_BEGIN": int64(HintBegin),
		"GW_HINT_END": int64(HintEnd), "GW_HINT_IDEMPOTENT": int64(HintIdempotent),
	}
	theirs := readHeader(t).numbers
	if !reflect.DeepEqual(ours, theirs) {
		t.Errorf("Go:    %v\nabi.h: %v", ours, theirs)
	}
}
