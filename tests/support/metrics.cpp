#include "support/metrics.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "core/convert.hpp"
#include "support/guarded.hpp"

namespace sluice::test {

namespace {

constexpr std::int64_t kBlockTokens = 64;
constexpr double kFloor = 1e-6;

struct Sums {
    double error = 0;
    double reference = 0;
    std::int64_t count = 0;
    bool finite = true;
};

std::vector<double> elements(const TensorView& view) {
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(view.size()));
    for_each_offset(view, [&](std::int64_t offset) {
        values.push_back(load_element(view.data, view.dtype, offset));
    });
    return values;
}

Sums sums_of(const Block& block) {
    Sums sums;
    const std::vector<double> x = elements(block.result);
    const std::vector<double> ref = elements(block.reference);
    for (std::size_t i = 0; i < x.size(); ++i) {
        sums.finite = sums.finite && std::isfinite(x[i]) && std::isfinite(ref[i]);
        sums.error += (x[i] - ref[i]) * (x[i] - ref[i]);
        sums.reference += ref[i] * ref[i];
    }
    sums.count = static_cast<std::int64_t>(x.size());
    return sums;
}

double ratio(double error, double reference) {
    return reference > 0 ? error / reference : error > 0 ? HUGE_VAL : 0;
}

}  // namespace

Accuracy compare(const std::vector<Block>& blocks) {
    Accuracy accuracy;
    std::vector<Sums> sums;
    Sums total;
    for (const Block& block : blocks) {
        sums.push_back(sums_of(block));
        total.error += sums.back().error;
        total.reference += sums.back().reference;
        total.count += sums.back().count;
        if (!sums.back().finite && accuracy.finite) {
            accuracy.finite = false;
            accuracy.where = block.where;
        }
    }
    if (total.count == 0 || !accuracy.finite) return accuracy;
    accuracy.whole = ratio(std::sqrt(total.error), std::sqrt(total.reference));
    const double floor = kFloor * std::sqrt(total.reference / static_cast<double>(total.count));
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (sums[i].count == 0) continue;
        const auto count = static_cast<double>(sums[i].count);
        const double reference = std::sqrt(sums[i].reference / count);
        const double block =
            ratio(std::sqrt(sums[i].error / count), reference > floor ? reference : floor);
        if (block > accuracy.worst_block) {
            accuracy.worst_block = block;
            accuracy.where = blocks[i].where;
        }
    }
    return accuracy;
}

bool within(const Accuracy& accuracy, double bound) {
    return accuracy.finite && accuracy.whole <= bound &&
           accuracy.worst_block <= kBlockAllowance * bound;
}

std::string describe(const Accuracy& accuracy, double bound) {
    if (!accuracy.finite) return fmt::format("not finite at {}", accuracy.where);
    return fmt::format("error {:.3g} (bound {:.3g}), worst block {:.3g} at {}", accuracy.whole,
                       bound, accuracy.worst_block, accuracy.where);
}

std::vector<Block> token_blocks(const TensorView& result, const TensorView& reference,
                                const std::vector<Sequence>& sequences) {
    std::vector<Block> blocks;
    for (std::size_t n = 0; n < sequences.size(); ++n) {
        const Sequence& s = sequences[n];
        for (std::int64_t head = 0; head < reference.extents[2]; ++head) {
            for (std::int64_t begin = s.begin; begin < s.end; begin += kBlockTokens) {
                const std::int64_t end = std::min(begin + kBlockTokens, s.end);
                const auto part = [&](const TensorView& view) {
                    return view.sliced(0, s.batch, s.batch + 1)
                        .sliced(1, begin, end)
                        .sliced(2, head, head + 1);
                };
                blocks.push_back({fmt::format("n{} h{} t{}", n, head, begin - s.begin),
                                  part(result), part(reference)});
            }
        }
    }
    return blocks;
}

std::vector<Block> head_blocks(const TensorView& result, const TensorView& reference) {
    std::vector<Block> blocks;
    for (std::int64_t n = 0; n < reference.extents[0]; ++n) {
        for (std::int64_t head = 0; head < reference.extents[1]; ++head) {
            const auto part = [&](const TensorView& view) {
                return view.sliced(0, n, n + 1).sliced(1, head, head + 1);
            };
            blocks.push_back({fmt::format("n{} h{}", n, head), part(result), part(reference)});
        }
    }
    return blocks;
}

std::vector<Block> whole_block(const TensorView& result, const TensorView& reference) {
    return {{"all", result, reference}};
}

bool same_bits(const TensorView& a, const TensorView& b) {
    if (a.dtype != b.dtype || a.size() != b.size()) return false;
    const Tensor x = Tensor::copy_of(a, a.dtype);
    const Tensor y = Tensor::copy_of(b, b.dtype);
    return std::memcmp(x.view().data, y.view().data, x.size_bytes()) == 0;
}

}  // namespace sluice::test
