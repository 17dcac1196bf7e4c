#include "cli/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::cli {

namespace {

constexpr std::int64_t kBlockTokens = 64;
constexpr double kFloor = 1e-6;

double ratio(double error, double reference) {
    if (reference > 0) return error / reference;
    return error > 0 ? std::numeric_limits<double>::infinity() : 0;
}

class Comparison {
  public:
    Comparison(const TensorView& result, const TensorView& reference)
        : result_(Tensor::copy_of(result, DType::kFloat64)),
          reference_(Tensor::copy_of(reference, DType::kFloat64)) {}

    /// `rows` runs of `count` elements, `stride` apart.
    void add_block(std::string where, std::int64_t first, std::int64_t rows, std::int64_t stride,
                   std::int64_t count) {
        Block block{std::move(where), 0, 0, rows * count, true};
        for (std::int64_t row = 0; row < rows; ++row) {
            for (std::int64_t i = first + row * stride; i < first + row * stride + count; ++i) {
                const double x = result_.elements<double>()[i];
                const double ref = reference_.elements<double>()[i];
                block.finite = block.finite && std::isfinite(x) && std::isfinite(ref);
                block.error += (x - ref) * (x - ref);
                block.reference += ref * ref;
            }
        }
        blocks_.push_back(std::move(block));
    }

    [[nodiscard]] Deviation finish() const {
        Deviation deviation;
        double error = 0;
        double reference = 0;
        std::int64_t count = 0;
        for (const Block& block : blocks_) {
            if (!block.finite) {
                constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
                return {kNaN, kNaN, block.where, false};
            }
            error += block.error;
            reference += block.reference;
            count += block.count;
        }
        deviation.whole = ratio(std::sqrt(error), std::sqrt(reference));
        for (const Block& block : blocks_) {
            const double share = static_cast<double>(block.count) / static_cast<double>(count);
            const double floor = kFloor * std::sqrt(reference * share);
            const double worst =
                ratio(std::sqrt(block.error), std::max(std::sqrt(block.reference), floor));
            if (worst > deviation.worst_block) {
                deviation.worst_block = worst;
                deviation.where = block.where;
            }
        }
        return deviation;
    }

  private:
    struct Block {
        std::string where;
        double error;      // sum of squares
        double reference;  // sum of squares
        std::int64_t count;
        bool finite;
    };
    Tensor result_;
    Tensor reference_;
    std::vector<Block> blocks_;
};

}  // namespace

Deviation compare_outputs(const TensorView& result, const TensorView& reference,
                          const std::vector<Sequence>& sequences) {
    Comparison comparison(result, reference);
    const std::int64_t tokens = result.extents[1];
    const std::int64_t heads = result.extents[2];
    const std::int64_t channels = result.extents[3];
    for (std::size_t n = 0; n < sequences.size(); ++n) {
        const Sequence& s = sequences[n];
        for (std::int64_t h = 0; h < heads; ++h) {
            for (std::int64_t t = s.begin; t < s.end; t += kBlockTokens) {
                comparison.add_block(
                    fmt::format("sequence {}, head {}, token {}", n, h, t - s.begin),
                    ((s.batch * tokens + t) * heads + h) * channels,
                    std::min(kBlockTokens, s.end - t), heads * channels, channels);
            }
        }
    }
    return comparison.finish();
}

Deviation compare_states(const TensorView& result, const TensorView& reference) {
    Comparison comparison(result, reference);
    std::int64_t count = 1;
    for (int d = 2; d < result.rank; ++d) count *= result.extents[d];
    for (std::int64_t n = 0; n < result.extents[0]; ++n) {
        for (std::int64_t h = 0; h < result.extents[1]; ++h) {
            comparison.add_block(fmt::format("sequence {}, head {}", n, h),
                                 (n * result.extents[1] + h) * count, 1, 0, count);
        }
    }
    return comparison.finish();
}

}  // namespace sluice::cli
