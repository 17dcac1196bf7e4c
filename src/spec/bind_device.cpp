#include "spec/bind_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "spec/bind_inputs.hpp"

namespace sluice {

namespace {

enum class Kind : unsigned char { kInteger, kBool };

constexpr std::int64_t kAny = -1;  // an extent that the tensor itself decides

DeviceIndices bind_indices(const char* name, const TensorView& view, const Problem& problem,
                           std::initializer_list<std::int64_t> shape, const char* meaning,
                           Kind kind = Kind::kInteger) {
    const bool type_ok = kind == Kind::kBool
                             ? view.dtype == DType::kBool
                             : view.dtype == DType::kInt32 || view.dtype == DType::kInt64;
    if (!type_ok) {
        throw Error(ErrorCode::kDType, name, to_string(view.dtype),
                    kind == Kind::kBool ? "bool" : "int32 or int64");
    }
    if (view.device != problem.device) {
        throw Error(ErrorCode::kDevice, name, to_string(view.device),
                    to_string(problem.device) + " as the inputs");
    }
    const bool shape_ok = std::equal(
        shape.begin(), shape.end(), view.shape().begin(), view.shape().end(),
        [](std::int64_t wanted, std::int64_t got) { return wanted == kAny || wanted == got; });
    if (!shape_ok) {
        std::string wanted;
        for (const std::int64_t extent : shape) {
            wanted += wanted.empty() ? "" : ", ";
            wanted += extent == kAny ? "any" : std::to_string(extent);
        }
        throw Error(ErrorCode::kShape, name, describe(view),
                    fmt::format("{} = [{}]", meaning, wanted));
    }
    check_data(name, view);
    DeviceIndices bound;
    bound.data = view.data;
    bound.dtype = view.dtype;
    for (int i = 0; i < view.rank; ++i) {
        bound.extents[static_cast<std::size_t>(i)] = view.extents[static_cast<std::size_t>(i)];
        bound.strides[static_cast<std::size_t>(i)] =
            view.stride_elements[static_cast<std::size_t>(i)];
    }
    return bound;
}

}  // namespace

void bind_device_sequences(const Arguments& arguments, Problem& problem) {
    problem.dims.N = problem.dims.B;
    if (arguments.cu_seqlens) {
        const TensorView& offsets = *arguments.cu_seqlens;
        problem.indices.cu_seqlens =
            bind_indices("cu_seqlens", offsets, problem, {kAny}, "[N + 1]");
        if (offsets.extents[0] < 1) {
            throw Error(ErrorCode::kShape, "cu_seqlens", describe(offsets), "[N + 1]");
        }
        if (problem.dims.B != 1) {
            throw Error(ErrorCode::kShape, "cu_seqlens", fmt::format("with B = {}", problem.dims.B),
                        "packed sequences in one batch row, B = 1");
        }
        problem.dims.N = offsets.extents[0] - 1;
    }
    check_states(problem.dims);
}

void bind_device_slots(const StateArguments& s, Problem& problem) {
    const std::int64_t n = problem.dims.N;
    const bool decode = problem.phase == Phase::kDecode;
    auto& indices = problem.indices;
    if (s.read_slots) {
        const bool matrix = decode && s.read_slots->rank == 2;
        indices.read_slots =
            matrix ? bind_indices("read_slots", *s.read_slots, problem, {n, kAny}, "[N, M]")
                   : bind_indices("read_slots", *s.read_slots, problem, {n}, "[N]");
        if (matrix && indices.read_slots.extents[1] < 1) {
            throw Error(ErrorCode::kShape, "read_slots", describe(*s.read_slots),
                        "[N, M] with M >= 1");
        }
    }
    if (s.accepted) {
        indices.accepted = bind_indices("accepted", *s.accepted, problem, {n}, "[N]");
    }
    if (s.write_slots) {
        const bool matrix = decode && s.write_slots->rank == 2;
        if (matrix && problem.indices.cu_seqlens) {
            throw Error(ErrorCode::kUnsupported, "write_slots", describe(*s.write_slots),
                        "[N] with cu_seqlens; [N, T] without");
        }
        indices.write_slots =
            matrix ? bind_indices("write_slots", *s.write_slots, problem, {n, problem.dims.T},
                                  "[N, T]")
                   : bind_indices("write_slots", *s.write_slots, problem, {n}, "[N]");
    }
    if (s.has_initial) {
        indices.has_initial =
            bind_indices("has_initial", *s.has_initial, problem, {n}, "[N]", Kind::kBool);
    }
    if (s.checkpoints) {
        const std::int64_t count =
            s.checkpoint_slots->rank == 1 ? s.checkpoint_slots->extents[0] : 0;
        const auto bind_list = [&](const char* name, const TensorView& view) {
            return bind_indices(name, view, problem, {count}, "[M]");
        };
        indices.checkpoint_slots = bind_list("checkpoint_slots", *s.checkpoint_slots);
        indices.checkpoint_sequences = bind_list("checkpoint_sequences", *s.checkpoint_sequences);
        indices.checkpoint_positions = bind_list("checkpoint_positions", *s.checkpoint_positions);
    }
}

void bind_device_call(const Arguments& arguments, const Options& options, Problem& problem) {
    problem.stream = options.stream;
    problem.compile = options.compile;
    if (!arguments.workspace) return;
    const TensorView& view = *arguments.workspace;
    if (view.device != problem.device || problem.device.kind != DeviceKind::kCuda) {
        throw Error(ErrorCode::kDevice, "workspace", to_string(view.device),
                    problem.device.kind == DeviceKind::kCuda
                        ? to_string(problem.device) + " as the inputs"
                        : "no workspace with tensors on the CPU");
    }
    constexpr std::uintptr_t kAlignment = 256;
    if (!view.is_contiguous() || reinterpret_cast<std::uintptr_t>(view.data) % kAlignment != 0) {
        throw Error(ErrorCode::kStride, "workspace",
                    fmt::format("{} at {}", describe(view), view.data),
                    fmt::format("contiguous memory, aligned to {} bytes", kAlignment));
    }
    check_data("workspace", view);
    problem.workspace = view.data;
    problem.workspace_bytes = view.size() * static_cast<std::int64_t>(size_bytes(view.dtype));
}

}  // namespace sluice
