// Checks the kernel for scalar decays against the float64 recurrence on fresh inputs, then times
// it: median of CUDA events, L2 flushed before every run.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "sm90/scalar/params.cuh"

namespace {

using Half = unsigned short;  // the bits of a bf16 or fp16 number
using namespace sluice::scalar;

void check(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    std::exit(1);
}
void check(CUresult status, const char* what) {
    if (status == CUDA_SUCCESS) return;
    const char* text = nullptr;
    cuGetErrorString(status, &text);
    std::fprintf(stderr, "%s: %s\n", what, text);
    std::exit(1);
}

/// Distributions. kTimeStep: what softplus takes to steps of 0.001 to 0.1, as models are
/// initialised.
enum Fill { kNormal, kMild, kUsual, kSpiky, kTimeStep, kStrongStep };
constexpr const char* kFillNames[] = {"normal",          "logsigmoid/16",
                                      "logsigmoid",      "logsigmoid/16, 5% -1000",
                                      "steps 0.001-0.1", "steps, 5% 60"};

__global__ void fill(Half* out, long long n, unsigned seed, Fill how, bool fp16) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        unsigned long long x = i * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
        x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ x >> 27) * 0x94D049BB133111EBull;
        x ^= x >> 31;
        const float u = ((x >> 40) + 1) * (1.f / 16777217.f);
        const float v = (x >> 8 & 0xffff) * (1.f / 65536.f);
        const float normal = sqrtf(-2 * logf(u)) * cospif(2 * v);
        const float gate = -log1pf(expf(-normal));
        float value = normal;
        if (how == kMild) value = gate / 16;
        if (how == kUsual) value = gate;
        if (how == kSpiky) value = (x & 0xff) < 13 ? -1000.f : gate / 16;
        if (how >= kTimeStep) value = logf(expm1f(0.001f * powf(100.f, u)));
        if (how == kStrongStep && (x & 0xff) < 13) value = 60.f;
        out[i] = fp16 ? __half_as_ushort(__float2half(value))
                      : __bfloat16_as_ushort(__float2bfloat16(value));
    }
}

struct Kernel {
    CUfunction function = nullptr;
    int shared_bytes = 0, threads = 0;
};

/// A line of configurations.txt.
struct Configuration {
    std::string name, gate, skip;
    int keys, heads, tiles;
    int first_heads, first_tiles;  // of the first launch's blocks
    bool gated;
    bool fp16;    // q, k, v, z and o; else bf16
    bool shared;  // scores come from the first launch
    Kernel whole, state_only;
};

Kernel load(const std::string& path) {
    CUmodule module;
    check(cuModuleLoad(&module, path.c_str()), path.c_str());
    Kernel kernel;
    check(cuModuleGetFunction(&kernel.function, module, "sluice_scalar"), "sluice_scalar");
    CUdeviceptr shape_address;
    std::size_t bytes;
    check(cuModuleGetGlobal(&shape_address, &bytes, module, "sluice_scalar_shape"), "shape");
    int shape[2];
    check(cuMemcpyDtoH(shape, shape_address, sizeof shape), "shape");
    kernel.shared_bytes = shape[0];
    kernel.threads = shape[1];
    check(cuFuncSetAttribute(kernel.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                             kernel.shared_bytes),
          "shared memory");
    return kernel;
}

std::map<std::string, Configuration> load_all(const std::string& folder) {
    std::map<std::string, Configuration> all;
    std::FILE* list = std::fopen((folder + "/configurations.txt").c_str(), "r");
    if (list == nullptr) std::exit(1);
    char name[64], gate[64], skip[64], gated[64], input[64], shared[64];
    int keys, heads, tiles, stages, first_heads, first_tiles, first_stages;
    while (std::fscanf(list, "%63s %d %d %d %63s %63s %63s %d %63s %63s %d %d %d", name, &keys,
                       &heads, &tiles, gate, skip, gated, &stages, input, shared, &first_heads,
                       &first_tiles, &first_stages) == 13) {
        const std::string file = folder + "/" + name;
        Configuration& c = all[name];
        c = {.name = name,
             .gate = gate,
             .skip = skip,
             .keys = keys,
             .heads = heads,
             .tiles = tiles,
             .first_heads = first_heads,
             .first_tiles = first_tiles,
             .gated = std::strcmp(gated, "true") == 0,
             .fp16 = std::strcmp(input, "kFloat16") == 0,
             .shared = std::strcmp(shared, "true") == 0,
             .whole = {},
             .state_only = {}};
        c.whole = load(file + ".cubin");
        c.state_only = load(file + "_state.cubin");
    }
    std::fclose(list);
    return all;
}

/// A contiguous [B, T, H, D] tensor as boxes of 64 tokens x 64 channels.
Map make_map(void* data, bool fp16, int d, int h, long long t, int b) {
    Map map;
    const cuuint64_t extents[4] = {(cuuint64_t)d, (cuuint64_t)h, (cuuint64_t)t, (cuuint64_t)b};
    const cuuint64_t strides[3] = {2ull * d, 2ull * d * h, 2ull * d * h * t};
    const cuuint32_t box[4] = {64, 1, 64, 1};
    const cuuint32_t ones[4] = {1, 1, 1, 1};
    check(
        cuTensorMapEncodeTiled(
            reinterpret_cast<CUtensorMap*>(&map),
            fp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, data,
            extents, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "tensor map");
    return map;
}

struct Case {
    std::string kernel;
    int b, t, h, g, k, v;  // h value heads of g key heads
    int segments = 1;
    std::vector<int> offsets = {};  // of packed sequences, b = 1
    int parts = 2;                  // of a segment, in the first launch

    [[nodiscard]] long long tokens() const { return (long long)b * t; }
    [[nodiscard]] long long keys() const { return tokens() * g * k; }
    [[nodiscard]] long long values() const { return tokens() * h * v; }
    [[nodiscard]] int sequences() const { return offsets.empty() ? b : (int)offsets.size() - 1; }
    [[nodiscard]] long long states() const { return (long long)sequences() * h * k * v; }
};

template <class T>
T* allocate(long long n) {
    void* p;
    check(cudaMalloc(&p, std::max(n, 1ll) * sizeof(T)), "memory");
    return static_cast<T*>(p);
}

template <class T>
std::vector<T> download(const T* p, long long n) {
    std::vector<T> host(n);
    check(cudaMemcpy(host.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return host;
}

double constant_decay(int head) { return std::log1p(-std::exp2(-5.0 - head % 8)); }

class Problem {
  public:
    Problem(const Case& c, const Configuration& configuration, Fill gates)
        : case_(c), configuration_(configuration) {
        const bool fp16 = configuration.fp16;
        q = filled(c.keys(), 1, kNormal, fp16);
        k = filled(c.keys(), 2, kNormal, fp16);
        v = filled(c.values(), 3, kNormal, fp16);
        gate = filled(c.tokens() * c.h, 4, gates);
        z = filled(configuration.gated ? c.values() : 1, 5, kNormal, fp16);
        rate = filled(c.h, 6, kNormal);
        skip = filled((long long)c.h * c.v, 7, kNormal);
        bias = filled(c.h, 8, kNormal);
        initial = filled(c.states(), 9, kNormal);
        o = allocate<Half>(c.values());
        final = allocate<float>(c.states());
        check(cudaMemset(o, 0xff, c.values() * sizeof(Half)), "poison");
        const auto tiles_of = [&](int width) { return (c.v + 64 * width - 1) / (64 * width); };
        const auto head_blocks_of = [&](int heads) { return (c.h / c.g + heads - 1) / heads; };
        const int state_tiles =
            std::max(tiles_of(configuration.tiles) * configuration.tiles,
                     tiles_of(configuration.first_tiles) * configuration.first_tiles);
        const int parts = (c.segments - 1) * c.parts;
        const long long rows = (long long)c.sequences() * c.h * (parts + 1);
        params_ = {};
        params_.q = make_map(q, fp16, c.k, c.g, c.t, c.b);
        params_.k = make_map(k, fp16, c.k, c.g, c.t, c.b);
        params_.v = make_map(v, fp16, c.v, c.h, c.t, c.b);
        params_.o = make_map(o, fp16, c.v, c.h, c.t, c.b);
        params_.z = make_map(z, fp16, c.v, c.h, c.t, c.b);
        if (!c.offsets.empty()) {
            offsets_ = allocate<int>(c.offsets.size());
            cudaMemcpy(offsets_, c.offsets.data(), c.offsets.size() * 4, cudaMemcpyHostToDevice);
            params_.cu_seqlens = {offsets_, 1, 0};
        }
        // Value-first, as Mamba-2 has it.
        const auto state = [&](void* data, int type) {
            return StateTensor{
                data, c.sequences(), (long long)c.h * c.k * c.v, (long long)c.k * c.v, 1, c.k,
                {},   type};
        };
        params_.initial = state(initial, kBFloat16);
        params_.final = state(final, kFloat32);
        params_.segments = c.segments;
        params_.parts = c.parts;
        params_.state_tiles = state_tiles;
        params_.segment_state = segment_state_ =
            allocate<float>(rows * state_tiles * 64 * configuration.keys);
        params_.segment_decay = segment_decay_ = allocate<float>(rows);
        const std::size_t score_bytes = configuration.shared ? score_tiles() * 8192 : 1;
        params_.scores = scores_ = allocate<unsigned char>(score_bytes);
        check(cudaMemset(scores_, 0xff, score_bytes), "poison");
        params_.o_data = o;
        params_.o_token_stride = (long long)c.h * c.v;
        params_.o_head_stride = c.v;
        params_.tokens = c.t;
        params_.heads = c.h;
        params_.heads_per_key_head = c.h / c.g;
        params_.head_blocks = head_blocks_of(configuration.heads);
        params_.keys = c.k;
        params_.values = c.v;
        params_.value_tiles = tiles_of(configuration.tiles);
        // Blocks of shared scores: what the states leave of the GPU.
        const int sharing = c.sequences() * c.g;
        params_.state_blocks = sharing * head_blocks_of(configuration.first_heads) *
                               tiles_of(configuration.first_tiles) * parts;
        params_.score_blocks = std::max(1, (132 - params_.state_blocks) / sharing);
        score_blocks_ = configuration.shared ? params_.score_blocks * sharing : 0;
        params_.scale = scale();
        params_.gate = {gate, (long long)c.t * c.h, c.h, 1, kBFloat16};
        params_.rate = {rate, 1, 0, kBFloat16};
        params_.bias = {bias, 1, 0, kBFloat16};
        params_.skip = {skip, c.v, 1, kBFloat16};
        params_.rate_is_log = 1;
        params_.softplus = 1;
        params_.greatest_step = INFINITY;
        for (int h = 0; h < std::min(c.h, kMostConstants); ++h) {
            params_.decay[h] = static_cast<float>(constant_decay(h));
        }
        first_params_ = params_;
        first_params_.head_blocks = head_blocks_of(configuration.first_heads);
        first_params_.value_tiles = tiles_of(configuration.first_tiles);
        check(cudaDeviceSynchronize(), "inputs");
    }
    ~Problem() {
        for (void* p :
             {(void*)q, (void*)k, (void*)v, (void*)gate, (void*)z, (void*)rate, (void*)skip,
              (void*)bias, (void*)initial, (void*)o, (void*) final, (void*)segment_state_,
              (void*)segment_decay_, (void*)scores_, (void*)offsets_}) {
            cudaFree(p);
        }
    }
    Problem(const Problem&) = delete;

    void run() {
        const bool first = case_.segments > 1 || configuration_.shared;
        if (first) {
            const int states = params_.state_blocks;
            launch(configuration_.state_only, first_params_, states + score_blocks_, false);
        }
        launch(configuration_.whole, params_, blocks(), first);
    }
    [[nodiscard]] float scale() const {
        return configuration_.gate == "kTimeStep" ? 1.f
                                                  : 1.f / std::sqrt(static_cast<float>(case_.k));
    }

    Half *q, *k, *v, *gate, *z, *rate, *skip, *bias, *initial, *o;
    float* final;

  private:
    /// Of shared scores: storage.cuh says where each is.
    [[nodiscard]] std::size_t score_tiles() const {
        const bool packed = !case_.offsets.empty();
        return static_cast<std::size_t>(packed ? case_.t / 64 + case_.sequences()
                                               : case_.b * ((case_.t + 63) / 64)) *
               case_.g;
    }
    static Half* filled(long long n, unsigned seed, Fill how, bool fp16 = false) {
        Half* p = allocate<Half>(n);
        fill<<<1024, 256>>>(p, n, seed, how, fp16);
        return p;
    }
    [[nodiscard]] int blocks() const {
        return case_.sequences() * case_.g * params_.head_blocks * params_.value_tiles *
               case_.segments;
    }
    /// `early`: may begin before the launch before it has ended.
    static void launch(const Kernel& kernel, Params& params, int blocks, bool early) {
        void* arguments[] = {&params};
        CUlaunchAttribute attribute = {};
        attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        CUlaunchConfig config = {};
        config.gridDimX = blocks;
        config.gridDimY = config.gridDimZ = 1;
        config.blockDimX = kernel.threads;
        config.blockDimY = config.blockDimZ = 1;
        config.sharedMemBytes = kernel.shared_bytes;
        config.attrs = &attribute;
        config.numAttrs = early ? 1 : 0;
        check(cuLaunchKernelEx(&config, kernel.function, arguments, nullptr), "launch");
    }

    const Case& case_;
    const Configuration& configuration_;
    Params params_, first_params_;  // of the launches: outputs, first
    float *segment_state_, *segment_decay_;
    unsigned char* scores_;
    int score_blocks_ = 0;
    int* offsets_ = nullptr;
};

struct Error {
    double error = 0, size = 0;
    void add(double x, double reference) {
        error += (x - reference) * (x - reference);
        size += reference * reference;
    }
    [[nodiscard]] double ratio() const { return std::sqrt(error / size); }
};

/// RMS error over RMS, of outputs and final state. NaN anywhere gives NaN.
bool is_right(const Case& c, const Configuration& configuration, Fill gates) {
    Problem problem(c, configuration, gates);
    problem.run();
    check(cudaDeviceSynchronize(), "run");
    const auto numbers = [](const Half* p, long long n, bool fp16 = false) {
        std::vector<double> all(n);
        const auto bits = download(p, n);
        std::transform(bits.begin(), bits.end(), all.begin(), [&](Half x) {
            return fp16 ? __half2float(__ushort_as_half(x))
                        : __bfloat162float(__ushort_as_bfloat16(x));
        });
        return all;
    };
    const bool fp16 = configuration.fp16;
    const auto q = numbers(problem.q, c.keys(), fp16), k = numbers(problem.k, c.keys(), fp16);
    const auto v = numbers(problem.v, c.values(), fp16), o = numbers(problem.o, c.values(), fp16);
    const auto gate = numbers(problem.gate, c.tokens() * c.h);
    const auto z = numbers(problem.z, configuration.gated ? c.values() : 1, fp16);
    const auto rate = numbers(problem.rate, c.h), bias = numbers(problem.bias, c.h);
    const auto skip = numbers(problem.skip, (long long)c.h * c.v);
    const auto initial = numbers(problem.initial, c.states());
    const auto final_state = download(problem.final, c.states());
    Error output, final_error;
    std::vector<double> state(c.k * c.v), out(c.v);
    for (int sequence = 0; sequence < c.sequences(); ++sequence) {
        const long long begin = c.offsets.empty() ? (long long)sequence * c.t : c.offsets[sequence];
        const long long end = c.offsets.empty() ? begin + c.t : c.offsets[sequence + 1];
        for (int head = 0; head < c.h; ++head) {
            const long long place = ((long long)sequence * c.h + head) * c.k * c.v;
            for (int j = 0; j < c.v; ++j) {
                for (int i = 0; i < c.k; ++i) {
                    state[i * c.v + j] = initial[place + (long long)j * c.k + i];
                }
            }
            for (long long t = begin; t < end; ++t) {
                const long long key_row = (t * c.g + head / (c.h / c.g)) * c.k;
                const long long row = t * c.h + head;
                double log_decay = 0, weight = 1;
                if (configuration.gate == "kConstant") log_decay = constant_decay(head);
                if (configuration.gate == "kGiven") log_decay = gate[row];
                if (configuration.gate == "kTimeStep") {
                    const double x = gate[row] + bias[head];
                    weight = x > 30 ? x : std::log1p(std::exp(x));
                    log_decay = -std::exp(rate[head]) * weight;
                }
                const double decay = std::exp(log_decay);
                std::fill(out.begin(), out.end(), 0.0);
                for (int i = 0; i < c.k; ++i) {
                    const double key = k[key_row + i] * weight;
                    const double query = q[key_row + i] * problem.scale();
                    for (int j = 0; j < c.v; ++j) {
                        double& x = state[i * c.v + j];
                        x = x * decay + key * v[row * c.v + j];
                        out[j] += query * x;
                    }
                }
                for (int j = 0; j < c.v; ++j) {
                    double x = out[j];
                    if (configuration.skip != "kNone") {
                        const int channel = configuration.skip == "kChannel" ? j : 0;
                        x += skip[(long long)head * c.v + channel] * v[row * c.v + j];
                    }
                    if (configuration.gated) {
                        const double g = z[row * c.v + j];
                        x *= g / (1 + std::exp(-g));
                    }
                    output.add(o[row * c.v + j], x);
                }
            }
            for (int j = 0; j < c.v; ++j) {
                for (int i = 0; i < c.k; ++i) {
                    final_error.add(final_state[place + (long long)j * c.k + i],
                                    state[i * c.v + j]);
                }
            }
        }
    }
    const bool ok = output.ratio() <= 4e-3 && final_error.ratio() <= 5e-3;
    std::printf("%-4s %-18s segments %d  B%d T%d H%d/%d K%d V%d%s  %-24s o %.2e  state %.2e\n",
                ok ? "ok" : "FAIL", c.kernel.c_str(), c.segments, c.b, c.t, c.h, c.g, c.k, c.v,
                c.offsets.empty() ? "" : " packed", kFillNames[gates], output.ratio(),
                final_error.ratio());
    return ok;
}

void time(const Case& c, const Configuration& configuration, Fill gates) {
    constexpr std::size_t kFlushBytes = 256u << 20;
    static char* flush = allocate<char>(3 * kFlushBytes);
    Problem problem(c, configuration, gates);
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> samples;
    for (int i = 0; i < 16; ++i) {
        // Writes 256 MB, then reads other 256 MB: no dirty line is left to write back.
        check(cudaMemsetAsync(flush, i, kFlushBytes), "flush");
        check(cudaMemcpyAsync(flush + kFlushBytes, flush + 2 * kFlushBytes, kFlushBytes,
                              cudaMemcpyDeviceToDevice),
              "flush");
        cudaEventRecord(begin);
        problem.run();
        cudaEventRecord(end);
        check(cudaEventSynchronize(end), "run");
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        if (i > 0) samples.push_back(ms);
    }
    std::sort(samples.begin(), samples.end());
    const double median = samples[samples.size() / 2];
    const bool gates_read = configuration.gate == "kGiven" || configuration.gate == "kTimeStep";
    const double bytes = 2.0 * (2 * c.keys() + (configuration.gated ? 3 : 2) * c.values() +
                                (gates_read ? c.tokens() * c.h : 0)) +
                         6.0 * c.states();
    const double floor = bytes / 4.28e12 * 1e3;
    std::printf(
        "%-18s segments %d  B%-2d T%-5d H%d/%d K%d V%d  %-16s %.4f ms  floor %.4f  %.0f %%\n",
        c.kernel.c_str(), c.segments, c.b, c.t, c.h, c.g, c.k, c.v, kFillNames[gates], median,
        floor, 100 * floor / median);
}

}  // namespace

int main(int argc, char** argv) {
    const std::string folder = argc > 1 ? argv[1] : ".";
    const bool only_check = argc > 2 && std::strcmp(argv[2], "check") == 0;
    const bool only_time = argc > 2 && std::strcmp(argv[2], "time") == 0;
    const std::string only = argc > 3 ? argv[3] : "";  // kernel
    check(cudaFree(nullptr), "context");
    const auto kernels = load_all(folder);
    const auto gates_of = [](const Configuration& c) -> std::vector<Fill> {
        if (c.gate == "kGiven") return {kMild, kUsual, kSpiky};
        if (c.gate == "kTimeStep") return {kTimeStep, kStrongStep};
        return {kNormal};
    };
    bool ok = true;
    const std::vector<int> offsets = {0, 0, 1, 64, 129, 129, 300};
    const std::vector<Case> small = {
        {"mamba2", 1, 200, 4, 1, 128, 64},
        {"mamba2", 2, 500, 3, 1, 128, 64, 3},
        {"mamba2", 1, 300, 6, 2, 128, 64, 1, offsets},
        {"mamba2", 1, 300, 6, 2, 128, 64, 2, offsets},
        {"mamba2", 1, 129, 5, 1, 96, 56},
        {"mamba2_shared", 1, 200, 4, 1, 128, 64},
        {"mamba2_shared", 2, 1500, 3, 1, 128, 64},
        {"mamba2_shared", 2, 1500, 3, 1, 128, 64, 2},
        {"mamba2_shared", 2, 500, 3, 1, 128, 64, 3},
        {"mamba2_shared", 1, 300, 6, 2, 128, 64, 1, offsets},
        {"mamba2_shared", 1, 300, 6, 2, 128, 64, 2, offsets},
        {"mamba2_shared", 1, 129, 5, 1, 96, 56},
        {"mamba2_shared", 2, 1500, 8, 1, 128, 64, 3, {}, 1},
        {"mamba2_shared", 1, 300, 16, 2, 128, 64, 2, offsets},
        {"mamba2_shared", 1, 3000, 6, 1, 128, 64, 2, {}, 3},
        {"mamba2_shared_full", 2, 333, 4, 2, 128, 64},
        {"mamba2_shared_full", 1, 300, 6, 2, 128, 64, 2, offsets},
        {"mamba2_shared_64", 1, 333, 4, 1, 64, 64, 2},
        {"mamba2_shared_256", 2, 500, 3, 1, 256, 64, 3},
        {"mamba2_shared_256", 1, 300, 6, 2, 256, 64, 1, offsets},
        {"mamba2_full", 2, 333, 4, 2, 128, 64},
        {"mamba2_full", 1, 300, 6, 2, 128, 64, 2, offsets},
        {"mamba2_64", 1, 333, 4, 1, 64, 64},
        {"mamba2_wide", 1, 333, 4, 2, 128, 80},
        {"given", 1, 200, 2, 2, 128, 128},
        {"given", 2, 500, 3, 3, 128, 128, 3},
        {"given", 1, 300, 4, 2, 128, 192, 1, offsets},
        {"given", 1, 1, 64, 64, 128, 128},
        {"given_narrow", 1, 333, 3, 3, 128, 128, 2},
        {"given_narrow", 1, 1500, 3, 3, 128, 128, 2, {}, 5},
        {"constant", 1, 333, 2, 2, 128, 128},
        {"none", 1, 333, 2, 2, 128, 128},
        {"none", 1, 333, 2, 2, 80, 128, 2},
        {"mamba2_full_fp16", 2, 333, 4, 2, 128, 64},
        {"mamba2_full_fp16", 1, 300, 6, 2, 128, 64, 2, offsets},
        {"mamba2_64_fp16", 1, 333, 4, 1, 64, 64, 2},
        {"given_fp16", 2, 500, 3, 3, 128, 128, 3},
        {"given_fp16", 1, 300, 4, 2, 128, 192, 1, offsets},
        {"given_narrow_fp16", 1, 333, 3, 3, 96, 64, 2},
        {"none_fp16", 1, 333, 2, 2, 128, 128},
        {"none_fp16", 1, 333, 2, 2, 80, 128, 2},
        {"mamba2_256", 1, 200, 4, 1, 256, 64},
        {"mamba2_256", 2, 500, 3, 1, 256, 64, 3},
        {"mamba2_256", 1, 129, 5, 1, 136, 56},
        {"mamba2_full_256", 2, 333, 4, 2, 256, 80},
        {"mamba2_full_256", 1, 300, 6, 2, 256, 64, 2, offsets},
        {"given_256", 2, 500, 3, 3, 256, 128, 3},
        {"given_256", 1, 300, 4, 2, 192, 192, 1, offsets},
        {"given_256", 1, 1, 64, 64, 256, 64},
        {"constant_256", 1, 333, 2, 2, 256, 512},
        {"constant_256", 1, 64, 2, 2, 200, 64},
        {"mamba2_full_256_fp16", 2, 333, 4, 2, 256, 80},
        {"mamba2_full_256_fp16", 1, 300, 6, 2, 248, 64, 2, offsets},
        {"constant_256_fp16", 1, 333, 2, 2, 256, 64, 2},
    };
    for (const Case& c : small) {
        const auto kernel = kernels.find(c.kernel);
        if (only_time || kernel == kernels.end()) continue;
        if (!only.empty() && only != c.kernel) continue;
        for (const Fill gates : gates_of(kernel->second)) {
            ok = is_right(c, kernel->second, gates) && ok;
        }
    }
    if (only_check) return ok ? 0 : 1;
    const std::vector<Case> large = {
        {"mamba2", 4, 16384, 64, 1, 128, 64},
        {"mamba2", 1, 16384, 64, 1, 128, 64, 4},
        {"mamba2", 1, 4096, 64, 1, 128, 64, 2},
        {"mamba2", 1, 4096, 64, 1, 128, 64, 4},
        {"mamba2_full", 4, 16384, 64, 1, 128, 64},
        {"mamba2_shared", 4, 16384, 64, 1, 128, 64},
        {"mamba2_shared", 4, 2048, 64, 1, 128, 64},
        {"mamba2", 4, 2048, 64, 1, 128, 64},
        {"mamba2_shared", 1, 16384, 64, 1, 128, 64, 4},
        {"mamba2_shared", 1, 4096, 64, 1, 128, 64, 4},
        {"mamba2_shared", 1, 1024, 64, 1, 128, 64, 4},
        {"mamba2", 1, 1024, 64, 1, 128, 64, 4},
        {"mamba2_shared_full", 4, 16384, 64, 1, 128, 64},
        {"given", 16, 16384, 16, 16, 128, 128},
        {"constant", 16, 16384, 16, 16, 128, 128},
        {"none", 16, 16384, 16, 16, 128, 128},
        {"given", 4, 16384, 16, 16, 128, 128, 2},
        {"given", 1, 16384, 16, 16, 128, 128, 8},
        {"given", 1, 4096, 16, 16, 128, 128, 4},
        {"given", 1, 4096, 16, 16, 128, 128, 8},
        {"given_narrow", 4, 16384, 16, 16, 128, 128},
        {"given_narrow", 1, 16384, 16, 16, 128, 128, 4},
        {"given_narrow", 1, 4096, 16, 16, 128, 128, 4},
        {"mamba2_256", 4, 16384, 32, 1, 256, 64},
        {"mamba2_256", 1, 16384, 32, 1, 256, 64, 4},
        {"mamba2_shared_256", 4, 16384, 32, 1, 256, 64},
        {"mamba2_shared_256", 1, 16384, 32, 1, 256, 64, 4},
        {"constant_256", 4, 4096, 8, 8, 256, 512},
        {"given_fp16", 16, 16384, 16, 16, 128, 128},
        {"none_fp16", 16, 16384, 16, 16, 128, 128},
        // Fixed costs: a chunk a segment.
        {"mamba2", 1, 64, 64, 1, 128, 64},
        {"mamba2_shared", 1, 64, 64, 1, 128, 64},
        {"mamba2_shared", 1, 256, 64, 1, 128, 64, 4},
        {"mamba2", 1, 256, 64, 1, 128, 64, 4},
        {"given", 1, 64, 16, 16, 128, 128},
        {"given", 1, 512, 16, 16, 128, 128, 8},
    };
    for (const Case& c : large) {
        const auto kernel = kernels.find(c.kernel);
        if (kernel == kernels.end() || (!only.empty() && only != c.kernel)) continue;
        time(c, kernel->second, gates_of(kernel->second).front());
    }
    return ok ? 0 : 1;
}
