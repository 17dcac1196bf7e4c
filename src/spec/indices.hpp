// Index tensors: offsets of packed sequences, and slots of a state pool.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
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

/// Who writes and reads which slot of which memory: no slot is written twice, and none is written
/// by one sequence and read by another (they run at the same time).
class SlotUse {
  public:
    /// `pool` names the memory: equal for the same memory. All writes come before all reads.
    void write(const void* pool, const std::string& name, std::int64_t slot, std::int64_t sequence);
    void read(const void* pool, const std::string& name, std::int64_t slot,
              std::int64_t sequence) const;

  private:
    std::map<std::pair<const void*, std::int64_t>, std::int64_t> writer_;
};

}  // namespace sluice
