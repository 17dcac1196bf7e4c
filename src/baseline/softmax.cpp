// Flash-style: a block of queries at a time walks over blocks of keys, keeping for every query the
// running maximum m, the running sum l of exp(score - m) and the unnormalised output.
#include "baseline/softmax.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <vector>

#include "core/convert.hpp"
#include "cpu/denormals.hpp"
#include "cpu/team.hpp"
#include "sluice/error.hpp"

namespace sluice::baseline {

namespace {

// Eigen's AVX-512 product works on 48 rows at a time and halves its speed at 64.
constexpr std::int64_t kQueryBlock = 96;
constexpr std::int64_t kKeyBlock = 128;
static_assert(kQueryBlock <= kKeyBlock);  // the queries are converted in the keys' buffer

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>>;

struct Dims {
    std::int64_t B, T, S, H, HV, K, V;
};

void check_tensor(const char* name, const TensorView& view) {
    const std::string got =
        fmt::format("{} {}", sluice::to_string(view.dtype), sluice::to_string(view.shape()));
    if (view.rank != 4) throw Error(ErrorCode::kShape, name, got, "4 dimensions, [B, T, H, D]");
    if (!is_floating(view.dtype)) {
        throw Error(ErrorCode::kDType, name, got, "float32, bfloat16, float16 or float64");
    }
    if (view.device.kind != DeviceKind::kCpu) {
        throw Error(ErrorCode::kDevice, name, sluice::to_string(view.device), "cpu");
    }
    if (view.extents[3] > 1 && view.stride_elements[3] != 1) {
        throw Error(ErrorCode::kStride, name, sluice::to_string(view.strides()),
                    "contiguous channels (last stride 1)");
    }
}

void check_shape(const char* name, const TensorView& view, std::int64_t b, std::int64_t t,
                 std::int64_t h, std::int64_t d) {
    const std::int64_t expected[4] = {b, t, h, d};
    if (!std::equal(expected, expected + 4, view.shape().begin())) {
        throw Error(ErrorCode::kShape, name, sluice::to_string(view.shape()),
                    sluice::to_string(expected));
    }
}

Dims check(const SoftmaxArguments& a) {
    check_tensor("q", a.q);
    check_tensor("k", a.k);
    check_tensor("v", a.v);
    check_tensor("o", a.o);
    const Dims d = {a.q.extents[0], a.q.extents[1], a.k.extents[1], a.k.extents[2],
                    a.q.extents[2], a.q.extents[3], a.v.extents[3]};
    check_shape("k", a.k, d.B, d.S, d.H, d.K);
    check_shape("v", a.v, d.B, d.S, d.H, d.V);
    check_shape("o", a.o, d.B, d.T, d.HV, d.V);
    if (d.H < 1 || d.HV < 1 || d.HV % d.H != 0) {
        throw Error(ErrorCode::kShape, "q", fmt::format("{} heads", d.HV),
                    fmt::format("a multiple of k's {} heads", d.H));
    }
    if (d.S < d.T) {
        throw Error(ErrorCode::kShape, "k", fmt::format("{} keys", d.S),
                    fmt::format("at least as many as queries, {}", d.T));
    }
    return d;
}

std::int64_t head_offset(const TensorView& view, std::int64_t b, std::int64_t h) {
    return b * view.stride_elements[0] + h * view.stride_elements[2];
}

/// Tokens [begin, begin + count) of one head as float32 rows: the tensor itself where it is
/// float32, else a converted copy in `buffer`.
Rows float_rows(const TensorView& view, std::int64_t head, std::int64_t begin, std::int64_t count,
                RowMajor& buffer) {
    const std::int64_t stride = view.stride_elements[1];
    const std::int64_t offset = head + begin * stride;
    if (view.dtype == DType::kFloat32) {
        return {static_cast<const float*>(view.data) + offset, count, view.extents[3],
                Eigen::OuterStride<>(stride)};
    }
    for (std::int64_t i = 0; i < count; ++i) {
        load_row(view.data, view.dtype, offset + i * stride, 1, view.extents[3],
                 buffer.row(i).data());
    }
    return {buffer.data(), count, view.extents[3], Eigen::OuterStride<>(view.extents[3])};
}

/// One thread's buffers. Column-major with queries along columns: the reductions over keys then run
/// across SIMD lanes.
struct Workspace {
    Workspace(std::int64_t key_channels, std::int64_t value_channels)
        : k(kKeyBlock, key_channels),
          v(kKeyBlock, value_channels),
          q(kQueryBlock, key_channels),
          scores(kQueryBlock, kKeyBlock),
          o(kQueryBlock, value_channels),
          m(kQueryBlock),
          m_new(kQueryBlock),
          l(kQueryBlock) {}

    RowMajor k, v;
    Eigen::MatrixXf q, scores, o;
    Eigen::ArrayXf m, m_new, l;
};

class Attention {
  public:
    Attention(const SoftmaxArguments& arguments, const Dims& dims, float scale)
        : a_(arguments), d_(dims), scale_(scale) {}

    /// Queries [begin, begin + count) of query head `hv`.
    void run(std::int64_t b, std::int64_t hv, std::int64_t begin, std::int64_t count,
             Workspace& w) const {
        const std::int64_t h = hv / (d_.HV / d_.H);
        w.q.topRows(count) = scale_ * float_rows(a_.q, head_offset(a_.q, b, hv), begin, count, w.k);
        w.o.topRows(count).setZero();
        w.l.head(count).setZero();
        w.m.head(count).setConstant(-std::numeric_limits<float>::infinity());
        // The first query sees keys [0, first_limit), each further one a key more.
        const std::int64_t first_limit = begin + 1 + d_.S - d_.T;
        const std::int64_t last_limit = first_limit + count - 1;
        for (std::int64_t j = 0; j < last_limit; j += kKeyBlock) {
            add_keys(b, h, j, std::min(kKeyBlock, last_limit - j), first_limit, count, w);
        }
        store(b, hv, begin, count, w);
    }

  private:
    void add_keys(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t keys,
                  std::int64_t first_limit, std::int64_t count, Workspace& w) const {
        const Rows k = float_rows(a_.k, head_offset(a_.k, b, h), begin, keys, w.k);
        const Rows v = float_rows(a_.v, head_offset(a_.v, b, h), begin, keys, w.v);
        auto scores = w.scores.topLeftCorner(count, keys);
        scores.noalias() = w.q.topRows(count) * k.transpose();
        for (std::int64_t j = std::max<std::int64_t>(0, first_limit - begin); j < keys; ++j) {
            scores.col(j)
                .head(std::min(count, begin + j - first_limit + 1))
                .setConstant(-std::numeric_limits<float>::infinity());
        }
        auto m = w.m.head(count);
        auto m_new = w.m_new.head(count);
        auto l = w.l.head(count);
        auto o = w.o.topRows(count);
        m_new = m.max(scores.rowwise().maxCoeff().array());
        m = (m - m_new).exp();  // what the sums so far shrink by
        l *= m;
        // Column by column: Eigen does not vectorise through colwise().
        for (std::int64_t j = 0; j < keys; ++j) {
            scores.col(j).array() = (scores.col(j).array() - m_new).exp();
            l += scores.col(j).array();
        }
        for (std::int64_t c = 0; c < d_.V; ++c) o.col(c).array() *= m;
        o.noalias() += scores * v;
        m = m_new;
    }

    void store(std::int64_t b, std::int64_t hv, std::int64_t begin, std::int64_t count,
               Workspace& w) const {
        for (std::int64_t c = 0; c < d_.V; ++c) w.o.col(c).head(count).array() /= w.l.head(count);
        const std::int64_t stride = a_.o.stride_elements[1];
        const std::int64_t offset = head_offset(a_.o, b, hv) + begin * stride;
        for (std::int64_t i = 0; i < count; ++i) {
            const Eigen::RowVectorXf row = w.o.row(i);
            store_row(a_.o.data, a_.o.dtype, offset + i * stride, 1, d_.V, row.data());
        }
    }

    const SoftmaxArguments& a_;
    const Dims& d_;
    float scale_;
};

}  // namespace

void softmax_attention(const SoftmaxArguments& arguments, const SoftmaxOptions& options) {
    const Dims d = check(arguments);
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(d.K)));
    const Attention attention(arguments, d, static_cast<float>(scale));
    const std::int64_t blocks = (d.T + kQueryBlock - 1) / kQueryBlock;
    const std::int64_t heads = d.B * d.HV;
    const int threads =  // NOLINT: clang without OpenMP does not see its use
        cpu::team_size(cpu::thread_count(options.threads));
    const std::int64_t total = heads * blocks;
    std::atomic<std::int64_t> next = 0;
    std::exception_ptr failure;
    // Not an `omp for`: a thread whose buffers cannot be allocated must be able to leave.
#pragma omp parallel num_threads(threads)
    {
        // Else Eigen would split the products of a team of one over all cores, with other sums.
        omp_set_num_threads(1);
        // Without AVX, Eigen's exponential of -inf is a denormal: every masked score would cost.
        const cpu::FlushDenormals flush;
        try {
            Workspace workspace(d.K, d.V);
            // Late blocks see most keys: they go first, so that the last tasks are short.
            for (std::int64_t task = next++; task < total; task = next++) {
                const std::int64_t head = task % heads;
                const std::int64_t begin = (blocks - 1 - task / heads) * kQueryBlock;
                attention.run(head / d.HV, head % d.HV, begin, std::min(kQueryBlock, d.T - begin),
                              workspace);
            }
        } catch (...) {
#pragma omp critical
            if (!failure) failure = std::current_exception();
        }
    }
    if (failure) std::rethrow_exception(failure);
}

Work softmax_work(const SoftmaxArguments& arguments) {
    const Dims d = check(arguments);
    const auto bytes = [](const TensorView& view) {
        return static_cast<double>(view.size()) * static_cast<double>(size_bytes(view.dtype));
    };
    const auto t = static_cast<double>(d.T);
    Work work;
    work.flops = 2 * (t * static_cast<double>(d.S) - t * t / 2) * static_cast<double>(d.K + d.V) *
                 static_cast<double>(d.B * d.HV);
    work.bytes_read = bytes(arguments.q) + bytes(arguments.k) + bytes(arguments.v);
    work.bytes_written = bytes(arguments.o);
    return work;
}

std::int64_t softmax_workspace_bytes(const SoftmaxArguments& arguments, int threads) {
    const Dims d = check(arguments);
    const std::int64_t floats =
        (kQueryBlock + kKeyBlock) * (d.K + d.V) + kQueryBlock * (kKeyBlock + 3);
    return threads * floats * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace sluice::baseline
