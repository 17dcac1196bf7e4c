// Index tensors on the CPU, and the sequences that their offsets make.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "sluice/problem.hpp"

namespace sluice {

/// A vector or matrix of integers (int32, int64, or bool where asked) on the CPU.
class Indices {
  public:
    enum class Kind : unsigned char { kInteger, kBool };

    Indices(std::string name, const TensorView& view, Kind kind = Kind::kInteger);

    void require_shape(std::initializer_list<std::int64_t> shape, const char* meaning) const;
    [[nodiscard]] int rank() const noexcept { return view_.rank; }
    [[nodiscard]] std::int64_t extent(int dim) const noexcept { return view_.extents[dim]; }
    [[nodiscard]] std::int64_t operator()(std::int64_t i, std::int64_t j = 0) const;
    /// The same element, checked: -1 or a slot below `slots`.
    [[nodiscard]] std::int64_t slot(std::int64_t slots, std::int64_t i, std::int64_t j = 0) const;

  private:
    std::string name_;
    TensorView view_;
};

/// One sequence per batch row, or those that `cu_seqlens` packs into a single row. Slots are unset.
[[nodiscard]] std::vector<Sequence> split_sequences(const std::optional<TensorView>& cu_seqlens,
                                                    std::int64_t batch, std::int64_t tokens);

}  // namespace sluice
