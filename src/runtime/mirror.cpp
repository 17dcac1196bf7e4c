#include "runtime/mirror.hpp"

#include <algorithm>

#include "sluice/memory.hpp"

namespace sluice {

namespace {

constexpr std::uintptr_t kAlignment = 256;

/// `f(view, is_output)` for every tensor of a call.
template <class F>
void for_each_tensor(Arguments& arguments, F&& f) {
    for (auto& [name, view] : arguments.inputs) f(view, false);
    f(arguments.o, true);
    StateArguments& s = arguments.state;
    for (auto* view : {&arguments.cu_seqlens, &s.initial, &s.read_slots, &s.write_slots,
                       &s.has_initial, &s.accepted, &s.checkpoint_sequences,
                       &s.checkpoint_positions, &s.checkpoint_slots, &s.initial_key_sum}) {
        if (*view) f(**view, false);
    }
    for (auto* view : {&s.final, &s.checkpoints, &s.final_key_sum}) {
        if (*view) f(**view, true);
    }
}

/// Sorted; ranges that share a byte become one.
std::vector<Range> merged(std::vector<Range> ranges) {
    std::erase_if(ranges, [](const Range& range) { return range.begin == range.end; });
    std::ranges::sort(ranges, {}, &Range::begin);
    std::vector<Range> apart;
    for (const Range& range : ranges) {
        if (!apart.empty() && range.begin < apart.back().end) {
            apart.back().end = std::max(apart.back().end, range.end);
        } else {
            apart.push_back(range);
        }
    }
    return apart;
}

TensorView bytes_at(void* data, const Range& range, const Device& device) {
    return {data, DType::kBool, {static_cast<std::int64_t>(range.end - range.begin)}, device};
}

}  // namespace

Range range_of(const TensorView& view) {
    if (view.size() == 0) return {};
    std::int64_t lowest = 0, highest = 0;
    for (int d = 0; d < view.rank; ++d) {
        const std::int64_t reach = (view.extents[d] - 1) * view.stride_elements[d];
        (reach < 0 ? lowest : highest) += reach;
    }
    const auto bytes = static_cast<std::int64_t>(size_bytes(view.dtype));
    const auto base = reinterpret_cast<std::uintptr_t>(view.data);
    return {base + static_cast<std::uintptr_t>(lowest * bytes),
            base + static_cast<std::uintptr_t>((highest + 1) * bytes)};
}

Mirror::Mirror(const Arguments& arguments, const Device& to, const std::vector<Range>& with)
    : from_(arguments.o.device), to_(to), arguments_(arguments) {
    arguments_.workspace.reset();
    std::vector<Range> ranges = with;
    for_each_tensor(arguments_, [&](const TensorView& view, bool is_output) {
        ranges.push_back(range_of(view));
        if (!is_output) inputs_.push_back(ranges.back());
    });
    inputs_ = merged(inputs_);
    for (const Range& range : merged(ranges)) {
        const std::uintptr_t shift = range.begin % kAlignment;
        const std::int64_t shape[] = {static_cast<std::int64_t>(shift + range.end - range.begin)};
        Tensor memory = empty_on(DType::kBool, shape, to);
        auto* const first = static_cast<std::byte*>(memory.view().data) + shift;
        blocks_.push_back({range, std::move(memory), first});
    }
    for_each_tensor(arguments_, [&](TensorView& view, bool) {
        if (view.size() > 0) {
            const Block& block = block_of(range_of(view));
            view.data =
                block.image + (reinterpret_cast<std::uintptr_t>(view.data) - block.range.begin);
        }
        view.device = to;
    });
}

const Mirror::Block& Mirror::block_of(const Range& range) const {
    return *std::prev(std::ranges::upper_bound(
        blocks_, range.begin, {}, [](const Block& block) { return block.range.begin; }));
}

TensorView Mirror::original(const Range& range) const {
    auto* const first = reinterpret_cast<void*>(range.begin);  // NOLINT: it was a pointer
    return bytes_at(first, range, from_);
}

TensorView Mirror::image(const Range& range) const {
    const Block& block = block_of(range);
    return bytes_at(block.image + (range.begin - block.range.begin), range, to_);
}

void Mirror::fetch_inputs() const {
    for (const Range& range : inputs_) copy(image(range), original(range));
}

void Mirror::fetch() const {
    for (const Block& block : blocks_) copy(image(block.range), original(block.range));
}

void Mirror::write_back() const {
    for (const Block& block : blocks_) copy(original(block.range), image(block.range));
}

}  // namespace sluice
