#include "cuda/recurrent/recurrent_kernel.hpp"

#include <cstdint>

#include "cuda/emit/emit.hpp"

namespace sluice::cuda {

namespace {

using recurrent::IndexTensor;
using recurrent::StateTensor;

int number_type(DType dtype) {
    switch (dtype) {
        case DType::kBFloat16: return recurrent::kBFloat16;
        case DType::kFloat16: return recurrent::kFloat16;
        default: return recurrent::kFloat32;
    }
}

recurrent::Tensor tensor_of(const BoundInput& input) {
    const auto stride = [&](Axis axis) { return input.stride[static_cast<std::size_t>(axis)]; };
    return {.data = input.data,
            .batch_stride = stride(Axis::kB),
            .token_stride = stride(Axis::kT),
            .key_head_stride = stride(Axis::kH),
            .head_stride = stride(Axis::kHV),
            // No expression reads both kinds of channels.
            .channel_stride = stride(Axis::kK) + stride(Axis::kV),
            .type = number_type(input.dtype)};
}

/// Which four neighbours are one aligned load wherever the kernel needs them.
int quads_of(const BoundState& state, const Dims& dims) {
    const auto bytes = 4 * size_bytes(state.dtype);
    const bool aligned = reinterpret_cast<std::uintptr_t>(state.data) % bytes == 0 &&
                         state.stride_slot % 4 == 0 && state.stride_head % 4 == 0;
    if (!aligned) return recurrent::kNoQuads;
    if (state.stride_v == 1 && dims.V % 4 == 0 && state.stride_k % 4 == 0) {
        return recurrent::kValueQuads;
    }
    if (state.stride_k == 1 && dims.K % 4 == 0 && state.stride_v % 4 == 0) {
        return recurrent::kKeyQuads;
    }
    return recurrent::kNoQuads;
}

StateTensor state_of(const BoundState& state, const Dims& dims) {
    return {.data = state.data,
            .slots = state.slots,
            .slot_stride = state.stride_slot,
            .head_stride = state.stride_head,
            .key_stride = state.stride_k,
            .value_stride = state.stride_v,
            .type = number_type(state.dtype),
            .quads = state ? quads_of(state, dims) : recurrent::kNoQuads};
}

IndexTensor indices_of(const DeviceIndices& indices) {
    return {.data = indices.data,
            .row_stride = indices.strides[0],
            .column_stride = indices.strides[1],
            .columns = indices.extents[1] > 0 ? indices.extents[1] : 1,
            .is_64_bit = indices.dtype == DType::kInt64};
}

/// Also of no columns: [N, T] with T = 0 names no slot at all.
bool is_matrix(const DeviceIndices& indices) {
    return indices.extents[1] != 0 || indices.strides[1] != 0;
}

/// Blocks that read a key sum while another overwrites it would race.
bool key_sums_in_place(const Problem& problem) {
    return problem.final_key_sum && problem.final_key_sum.data == problem.initial_key_sum.data;
}

int value_tiles(const Problem& problem) {
    const std::int64_t tile = value_tile_of(padded_keys(problem.dims.K));
    return static_cast<int>((problem.dims.V + tile - 1) / tile);
}

int tiles_per_block(const Problem& problem) {
    return key_sums_in_place(problem) ? value_tiles(problem) : 1;
}

}  // namespace

int padded_keys(std::int64_t keys) noexcept {
    int padded = 16;
    while (padded < keys) padded *= 2;
    return padded;
}

KernelSource recurrent_kernel(const Spec& spec, int keys) {
    const char* path = "generated/recurrent.cuh";
    const std::string text =
        "#pragma once\n#include \"recurrent/kernel.cuh\"\n\nnamespace sluice::recurrent {\n\n" +
        emit_formulas(spec) +
        "\n}  // namespace sluice::recurrent\n\n"
        "extern \"C\" __global__ void __launch_bounds__(\n"
        "    sluice::recurrent::kThreads, sluice::recurrent::Config::kBlocksPerMultiprocessor)\n"
        "    sluice_recurrent(const __grid_constant__ sluice::recurrent::Params p) {\n"
        "    __shared__ sluice::recurrent::Storage<sluice::recurrent::Formulas> s;\n"
        "    sluice::recurrent::run(p, s);\n"
        "}\n";
    return {.entry = path,
            .function = "sluice_recurrent",
            .definitions = {{"SLUICE_KEYS", std::to_string(keys)},
                            {"SLUICE_LANES", std::to_string(lanes_of(keys))}},
            .generated = {{path, text}}};
}

recurrent::Params recurrent_params(const Problem& problem) {
    recurrent::Params p{};
    for (std::size_t i = 0; i < problem.inputs.size(); ++i) {
        p.inputs[i] = tensor_of(problem.inputs[i]);
    }
    std::size_t i = 0;
    for (const auto& [name, value] : problem.spec.parameters) {
        p.parameters[i++] = static_cast<float>(value);
    }
    p.o = tensor_of(problem.o);
    p.initial = state_of(problem.initial, problem.dims);
    p.final = state_of(problem.final, problem.dims);
    p.checkpoints = state_of(problem.checkpoints, problem.dims);
    p.initial_key_sum = state_of(problem.initial_key_sum, problem.dims);
    p.final_key_sum = state_of(problem.final_key_sum, problem.dims);
    const auto& indices = problem.indices;
    p.cu_seqlens = indices_of(indices.cu_seqlens);
    p.read_slots = indices_of(indices.read_slots);
    p.write_slots = indices_of(indices.write_slots);
    p.accepted = indices_of(indices.accepted);
    p.checkpoint_sequences = indices_of(indices.checkpoint_sequences);
    p.checkpoint_positions = indices_of(indices.checkpoint_positions);
    p.checkpoint_slots = indices_of(indices.checkpoint_slots);
    p.checkpoint_count = indices.checkpoint_slots ? indices.checkpoint_slots.extents[0] : 0;
    p.has_initial = static_cast<const unsigned char*>(indices.has_initial.data);
    p.has_initial_stride = indices.has_initial.strides[0];
    p.tokens = problem.dims.T;
    p.heads = static_cast<int>(problem.dims.HV);
    p.heads_per_key_head = static_cast<int>(problem.dims.HV / problem.dims.H);
    p.keys = static_cast<int>(problem.dims.K);
    p.values = static_cast<int>(problem.dims.V);
    p.value_tiles = value_tiles(problem);
    p.tiles_per_block = tiles_per_block(problem);
    p.writes_every_token = is_matrix(indices.write_slots) ? 1 : 0;
    p.padding = problem.phase == Phase::kDecode && indices.read_slots && indices.write_slots;
    p.scale = static_cast<float>(problem.scale);
    return p;
}

std::int64_t recurrent_blocks(const Problem& problem) noexcept {
    return problem.dims.N * problem.dims.HV * (value_tiles(problem) / tiles_per_block(problem));
}

}  // namespace sluice::cuda
