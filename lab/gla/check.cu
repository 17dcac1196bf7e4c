// Checks the GLA kernel against the float64 recurrence on fresh inputs, then times it: median of CUDA
// events, L2 flushed before every run.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "sm90/gla/params.cuh"

namespace {

using Bf16 = __nv_bfloat16;
using sluice::gla::Map;
using sluice::gla::Params;

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

enum Gates { kMild, kUsual, kSpiky, kStrong };
constexpr const char* kGateNames[] = {"logsigmoid/16", "logsigmoid", "logsigmoid/16, 5% -1000",
                                      "8 logsigmoid"};

__global__ void fill(Bf16* out, long long n, unsigned seed, int gates) {
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
        if (gates == kMild) value = gate / 16;
        if (gates == kUsual) value = gate;
        if (gates == kSpiky) value = (x & 0xff) < 13 ? -1000.f : gate / 16;
        if (gates == kStrong) value = gate * 8;
        out[i] = __float2bfloat16(value);
    }
}

struct Kernel {
    CUfunction function = nullptr;
    int shared_bytes = 0;
    int threads = 0;
};

Kernel load(const std::string& path) {
    CUmodule module;
    check(cuModuleLoad(&module, path.c_str()), path.c_str());
    Kernel kernel;
    check(cuModuleGetFunction(&kernel.function, module, "sluice_gla"), "sluice_gla");
    CUdeviceptr shape_address;
    std::size_t bytes;
    check(cuModuleGetGlobal(&shape_address, &bytes, module, "sluice_gla_shape"), "shape");
    int shape[2];
    check(cuMemcpyDtoH(shape, shape_address, sizeof shape), "shape");
    kernel.shared_bytes = shape[0] + 1024;  // the kernel aligns
    kernel.threads = shape[1];
    check(cuFuncSetAttribute(kernel.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                             kernel.shared_bytes),
          "shared memory");
    return kernel;
}

/// A contiguous [B, T, H, D] bf16 tensor as boxes of `tokens` x 64 channels.
Map make_map(void* data, int d, int h, long long t, int b, int tokens = 64) {
    Map map;
    const cuuint64_t extents[4] = {(cuuint64_t)d, (cuuint64_t)h, (cuuint64_t)t, (cuuint64_t)b};
    const cuuint64_t strides[3] = {2ull * d, 2ull * d * h, 2ull * d * h * t};
    const cuuint32_t box[4] = {64, 1, (cuuint32_t)tokens, 1};
    const cuuint32_t ones[4] = {1, 1, 1, 1};
    check(cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&map),
                                 CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, data, extents, strides, box,
                                 ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
          "tensor map");
    return map;
}

struct Shape {
    int b, t, h, k, v;
    [[nodiscard]] long long keys() const { return (long long)b * t * h * k; }
    [[nodiscard]] long long values() const { return (long long)b * t * h * v; }
    [[nodiscard]] long long state() const { return (long long)b * h * k * v; }
};

/// Blocks that a kernel spreads K over.
int parts_of(const std::string& kernel) { return kernel.find("x2") == std::string::npos ? 1 : 2; }
/// Blocks of neighbouring tiles of values that prepare chunks for each other.
int pair_of(const std::string& kernel) { return kernel.find("pair") == std::string::npos ? 1 : 2; }

struct Case {
    Shape shape;
    std::string kernel;
    int value_tile;
    int segments = 1;
    std::string first;  // the first launch's kernel, if it is not the same

    [[nodiscard]] int key_parts() const { return parts_of(kernel); }
    [[nodiscard]] int value_tiles() const {
        const int blocks = pair_of(kernel), width = value_tile * blocks;
        return (shape.v + width - 1) / width * blocks;
    }
    [[nodiscard]] std::string first_kernel() const { return (first.empty() ? kernel : first) + "_state"; }
};

template <class T>
T* allocate(long long n) {
    void* p;
    check(cudaMalloc(&p, n * sizeof(T)), "memory");
    return static_cast<T*>(p);
}

class Problem {
  public:
    Problem(const Case& c, Gates gates) : case_(c) {
        const Shape& s = c.shape;
        q = allocate<Bf16>(s.keys());
        k = allocate<Bf16>(s.keys());
        g = allocate<Bf16>(s.keys());
        v = allocate<Bf16>(s.values());
        o = allocate<Bf16>(s.values());
        state = allocate<float>(s.state());
        const long long segments = (long long)s.b * s.h * c.segments;
        const int tiles = c.value_tiles();
        const int keys = s.k > 128 ? 256 : 128;
        segment_state_ = allocate<float>(segments * tiles * c.value_tile * keys);
        segment_decay_ = allocate<float>(segments * keys);
        fill<<<1024, 256>>>(q, s.keys(), 1, -1);
        fill<<<1024, 256>>>(k, s.keys(), 2, -1);
        fill<<<1024, 256>>>(v, s.values(), 3, -1);
        fill<<<1024, 256>>>(g, s.keys(), 4, gates);
        check(cudaMemset(o, 0xff, s.values() * sizeof(Bf16)), "poison");
        params_ = {};
        params_.q = make_map(q, s.k, s.h, s.t, s.b);
        params_.k = make_map(k, s.k, s.h, s.t, s.b);
        params_.v = make_map(v, s.v, s.h, s.t, s.b);
        params_.g = make_map(g, s.k, s.h, s.t, s.b);
        params_.o = make_map(o, s.v, s.h, s.t, s.b, 64 / c.key_parts());
        params_.final = {state, (long long)s.b * s.h, (long long)s.h * s.k * s.v, (long long)s.k * s.v, s.v, 1,
                         {}, sluice::sm90::kFloat32};
        params_.segment_state = segment_state_;
        params_.segment_decay = segment_decay_;
        params_.tokens = s.t;
        params_.heads = s.h;
        params_.heads_per_key_head = 1;
        params_.keys = s.k;
        params_.values = s.v;
        params_.value_tiles = tiles;
        params_.segments = c.segments;
        params_.scale = 1.f / std::sqrt(static_cast<float>(s.k));
        check(cudaDeviceSynchronize(), "inputs");
    }
    ~Problem() {
        for (void* p : {(void*)q, (void*)k, (void*)v, (void*)g, (void*)o, (void*)state,
                        (void*)segment_state_, (void*)segment_decay_}) {
            cudaFree(p);
        }
    }
    Problem(const Problem&) = delete;

    void run(const std::map<std::string, Kernel>& kernels) {
        const int segments = case_.segments;
        if (segments > 1) {
            const std::string first = case_.first_kernel();
            const int tiles = params_.value_tiles;
            const int width = first == "k128v64_state" ? 64 : 128;
            params_.value_tiles = tiles * case_.value_tile / width;
            launch(kernels.at(first), parts_of(first), segments - 1, false);
            params_.value_tiles = tiles;
        }
        launch(kernels.at(case_.kernel), case_.key_parts(), segments, segments > 1);
    }

    Bf16 *q, *k, *v, *g, *o;
    float* state;

  private:
    void launch(const Kernel& kernel, int key_parts, int segments, bool before_end) {
        void* arguments[] = {&params_};
        const int blocks =
            case_.shape.b * case_.shape.h * params_.value_tiles * segments * key_parts;
        CUlaunchAttribute early{};
        early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        early.value.programmaticStreamSerializationAllowed = 1;
        CUlaunchConfig config{};
        config.gridDimX = blocks;
        config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
        config.blockDimX = kernel.threads;
        config.sharedMemBytes = kernel.shared_bytes;
        config.attrs = &early;
        config.numAttrs = before_end ? 1 : 0;
        check(cuLaunchKernelEx(&config, kernel.function, arguments, nullptr), "launch");
    }

    Case case_;
    Params params_;
    float *segment_state_, *segment_decay_;
};

template <class T>
std::vector<T> download(const T* p, long long n) {
    std::vector<T> host(n);
    check(cudaMemcpy(host.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return host;
}

/// RMS error over RMS, of outputs and final state. NaN anywhere gives NaN.
bool is_right(const Case& c, Gates gates, const std::map<std::string, Kernel>& kernels) {
    const Shape& s = c.shape;
    Problem problem(c, gates);
    problem.run(kernels);
    check(cudaDeviceSynchronize(), "run");
    const auto q = download(problem.q, s.keys());
    const auto k = download(problem.k, s.keys());
    const auto g = download(problem.g, s.keys());
    const auto v = download(problem.v, s.values());
    const auto o = download(problem.o, s.values());
    const auto final_state = download(problem.state, s.state());
    double error = 0, size = 0, state_error = 0, state_size = 0;
    std::vector<double> state(s.k * s.v), out(s.v);
    for (int head = 0; head < s.b * s.h; ++head) {
        std::fill(state.begin(), state.end(), 0.0);
        for (int t = 0; t < s.t; ++t) {
            const long long row = ((long long)(head / s.h) * s.t + t) * s.h + head % s.h;
            std::fill(out.begin(), out.end(), 0.0);
            for (int i = 0; i < s.k; ++i) {
                const double decay = std::exp((double)(float)g[row * s.k + i]);
                const double key = (float)k[row * s.k + i];
                const double query = (float)q[row * s.k + i] / std::sqrt((double)s.k);
                for (int j = 0; j < s.v; ++j) {
                    double& x = state[i * s.v + j];
                    x = x * decay + key * (double)(float)v[row * s.v + j];
                    out[j] += query * x;
                }
            }
            for (int j = 0; j < s.v; ++j) {
                error += std::pow((float)o[row * s.v + j] - out[j], 2);
                size += out[j] * out[j];
            }
        }
        for (int i = 0; i < s.k * s.v; ++i) {
            state_error += std::pow(final_state[(long long)head * s.k * s.v + i] - state[i], 2);
            state_size += state[i] * state[i];
        }
    }
    const double ratio = std::sqrt(error / size);
    const double state_ratio = std::sqrt(state_error / state_size);
    const bool ok = ratio <= 4e-3 && state_ratio <= 5e-3;
    std::printf("%-4s %-9s segments %d  B%d T%d H%d K%d V%d  %-24s o %.2e  state %.2e\n",
                ok ? "ok" : "FAIL", c.kernel.c_str(), c.segments, s.b, s.t, s.h, s.k, s.v,
                kGateNames[gates], ratio, state_ratio);
    return ok;
}

void time(const Case& c, Gates gates, const std::map<std::string, Kernel>& kernels) {
    constexpr std::size_t kFlushBytes = 256u << 20;
    static char* flush = allocate<char>(3 * kFlushBytes);
    const Shape& s = c.shape;
    Problem problem(c, gates);
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
        problem.run(kernels);
        cudaEventRecord(end);
        check(cudaEventSynchronize(end), "run");
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        if (i > 0) samples.push_back(ms);
    }
    std::sort(samples.begin(), samples.end());
    const double median = samples[samples.size() / 2];
    const double floor = 2.0 * (3 * s.keys() + 2 * s.values()) / 4.28e12 * 1e3;
    std::printf("%-9s segments %d  B%-2d T%-5d H%d K%d V%d  %-24s %.4f ms  floor %.4f  %.0f %%\n",
                c.kernel.c_str(), c.segments, s.b, s.t, s.h, s.k, s.v, kGateNames[gates], median,
                floor, 100 * floor / median);
}

}  // namespace

int main(int argc, char** argv) {
    const std::string folder = argc > 1 ? argv[1] : ".";
    check(cudaFree(nullptr), "context");
    std::map<std::string, Kernel> kernels;
    for (const char* name : {"k128v128", "k128v128_state", "k128v64", "k128v64_state", "k64v64",
                             "k128x2v128", "k128x2v128_state", "k128v64pair", "k64x2v128_state"}) {
        kernels[name] = load(folder + "/" + name + ".cubin");
    }
    const std::string mode = argc > 2 ? argv[2] : "";
    if (mode == "knockout" || mode == "profile") {
        const std::vector<Case> shapes = {{{16, 4096, 16, 128, 128}, "k128v128", 128},
                                          {{4, 4096, 16, 128, 128}, "k128v64", 64},
                                          {{4, 4096, 16, 128, 128}, "k128v64pair", 64},
                                          {{16, 4096, 32, 64, 64}, "k64v64", 64},
                                          {{16, 4096, 8, 256, 256}, "k128x2v128", 128}};
        for (const Case& c : shapes) {
            if (mode == "knockout") time(c, kMild, kernels);
            if (mode == "profile") Problem(c, kMild).run(kernels);
        }
        check(cudaDeviceSynchronize(), "run");
        return 0;
    }
    const std::string only = argc > 3 ? argv[3] : "";
    const bool all_gates = mode != "time" || argc > 4;
    bool ok = true;
    const std::vector<Case> small = {{{1, 200, 2, 128, 128}, "k128v128", 128},
                                     {{1, 64, 1, 128, 128}, "k128v128", 128},
                                     {{1, 200, 2, 128, 128}, "k128v64", 64},
                                     {{2, 500, 3, 128, 128}, "k128v64", 64, 3},
                                     {{2, 500, 3, 128, 128}, "k128v128", 128, 3},
                                     {{2, 500, 3, 128, 128}, "k128v128", 128, 2, "k128v64"},
                                     {{1, 200, 2, 128, 128}, "k128v64pair", 64},
                                     {{1, 64, 1, 128, 128}, "k128v64pair", 64},
                                     {{2, 1000, 3, 128, 128}, "k128v64pair", 64},
                                     {{2, 500, 3, 128, 128}, "k128v64pair", 64, 3, "k128v64"},
                                     {{2, 500, 3, 128, 128}, "k128v64pair", 64, 2, "k128v128"},
                                     {{2, 500, 3, 128, 128}, "k128v64pair", 64, 3, "k64x2v128"},
                                     {{2, 500, 3, 128, 128}, "k128v128", 128, 3, "k64x2v128"},
                                     {{1, 333, 2, 96, 144}, "k128v64pair", 64},
                                     {{1, 1, 64, 128, 128}, "k128v64pair", 64},
                                     {{1, 333, 2, 64, 64}, "k64v64", 64},
                                     {{1, 1, 64, 128, 64}, "k128v64", 64},
                                     {{1, 200, 2, 96, 80}, "k128v64", 64},
                                     {{1, 200, 2, 256, 128}, "k128x2v128", 128},
                                     {{2, 333, 2, 256, 256}, "k128x2v128", 128, 3},
                                     {{1, 500, 2, 192, 192}, "k128x2v128", 128, 2},
                                     {{1, 333, 2, 136, 80}, "k128x2v128", 128},
                                     {{1, 1, 64, 256, 64}, "k128x2v128", 128}};
    for (const Case& c : small) {
        if (mode == "time") break;
        if (!only.empty() && c.kernel != only) continue;
        for (const Gates gates : {kMild, kUsual, kSpiky, kStrong}) {
            ok = is_right(c, gates, kernels) && ok;
        }
    }
    if (mode == "check") return ok ? 0 : 1;
    const std::vector<Case> large = {{{16, 16384, 16, 128, 128}, "k128v128", 128},
                                     {{4, 16384, 16, 128, 128}, "k128v64", 64},
                                     {{1, 16384, 16, 128, 128}, "k128v64", 64, 4},
                                     {{16, 4096, 16, 128, 128}, "k128v128", 128},
                                     {{1, 4096, 16, 128, 128}, "k128v64", 64, 4},
                                     {{1, 16384, 16, 128, 128}, "k128v128", 128, 8},
                                     {{1, 4096, 16, 128, 128}, "k128v128", 128, 8},
                                     {{4, 16384, 16, 128, 128}, "k128v128", 128, 2},
                                     {{4, 16384, 16, 128, 128}, "k128v128", 128, 2, "k128v64"},
                                     {{4, 16384, 16, 128, 128}, "k128v64pair", 64},
                                     {{1, 16384, 16, 128, 128}, "k128v64pair", 64, 4, "k64x2v128"},
                                     {{1, 16384, 16, 128, 128}, "k128v128", 128, 8, "k64x2v128"},
                                     {{1, 4096, 16, 128, 128}, "k128v128", 128, 4, "k64x2v128"},
                                     {{1, 4096, 16, 128, 128}, "k128v64pair", 64, 4, "k64x2v128"},
                                     {{1, 16384, 16, 128, 128}, "k128v64pair", 64, 4, "k128v128"},
                                     {{1, 4096, 16, 128, 128}, "k128v128", 128, 8, "k64x2v128"},
                                     {{16, 4096, 16, 128, 128}, "k128v64pair", 64},
                                     {{1, 4096, 16, 128, 128}, "k128v64pair", 64},
                                     {{1, 4096, 16, 128, 128}, "k128v64", 64},
                                     {{1, 16384, 16, 128, 128}, "k128v64", 64},
                                     {{16, 16384, 32, 64, 64}, "k64v64", 64},
                                     // GLA-1.3B: 4 heads of 256 x 512.
                                     {{8, 4096, 4, 256, 512}, "k128x2v128", 128},
                                     {{1, 4096, 4, 256, 512}, "k128x2v128", 128},
                                     {{1, 4096, 4, 256, 512}, "k128x2v128", 128, 4},
                                     {{1, 16384, 4, 256, 512}, "k128x2v128", 128, 4},
                                     {{16, 16384, 8, 256, 256}, "k128x2v128", 128}};
    for (const Case& c : large) {
        if (!only.empty() && c.kernel != only) continue;
        for (const Gates gates : {kMild, kUsual, kSpiky}) {
            if (all_gates || gates == kMild) time(c, gates, kernels);
        }
    }
    return ok ? 0 : 1;
}
