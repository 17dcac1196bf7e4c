#include "measure/bench_job.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>

#include "baseline/softmax.hpp"
#include "measure/device.hpp"
#include "sluice/device.hpp"
#include "sluice/error.hpp"
#include "sluice/forward.hpp"
#include "sluice/memory.hpp"

namespace sluice::measure {

namespace {

/// A plan without a prediction is a plain time loop: assume this much.
constexpr double kTimeLoopFlopsPerCorePerS = 1e9;
/// The baseline's usual share of the matrix-product rate.
constexpr double kSoftmaxShare = 0.5;

Record start_record(const BenchCase& row) {
    Record record;
    record.op = row.op;
    record.model = row.model;
    record.phase = row.phase;
    record.dims = row.dims;
    record.dims.N = row.dims.B;
    if (row.phase == Phase::kDecode) record.dims.T = 1;
    record.dtype = row.dtype;
    record.gate_dtype = row.gate_dtype;
    record.seed = row.seed;
    record.clock_mhz = clock_mhz(row.device);
    return record;
}

void add_work(const Work& work, const Device& device, Record& record) {
    record.flops = work.flops;
    record.bytes_read = work.bytes_read;
    record.bytes_written = work.bytes_written;
    set_device(measured_device(device), record);
    record.h200_floor_us = floor_on(h200(), work).us();
}

/// The tensors of a recurrence's call, and the call.
struct Recurrence {
    Spec spec;
    Device device{};
    Dims dims;
    InputOptions input_options;
    OwnedInputs inputs;
    Tensor o;
    std::optional<Tensor> states, key_sums, slots;
    Arguments arguments;
    Options options;
    Phase phase = Phase::kPrefill;

    void allocate(DType state_dtype) {
        inputs = allocate_inputs(spec, dims, input_options, device);
        o = fresh(input_options.dtype, {dims.B, dims.T, dims.HV, dims.V});
        arguments.inputs = views(inputs);
        arguments.o = o;
        if (phase == Phase::kDecode) allocate_states(state_dtype);
    }

    [[nodiscard]] Tensor fresh(DType dtype, std::initializer_list<std::int64_t> shape) const {
        return empty_on(dtype, std::span(shape.begin(), shape.size()), device);
    }

    /// Decode updates a pool of states in place.
    void allocate_states(DType dtype) {
        const bool value_first = spec.default_state_layout == StateLayout::kValueFirst;
        states = fresh(
            dtype, {dims.B, dims.HV, value_first ? dims.V : dims.K, value_first ? dims.K : dims.V});
        const Tensor order = Tensor::empty(DType::kInt32, {dims.B});
        for (std::int64_t i = 0; i < dims.B; ++i) {
            order.elements<std::int32_t>()[static_cast<std::size_t>(i)] =
                static_cast<std::int32_t>(dims.B - 1 - i);
        }
        slots = copy_on(order, device);
        StateArguments& s = arguments.state;
        s.initial = s.final = *states;
        s.read_slots = s.write_slots = *slots;
        if (spec.normalize) {
            key_sums = fresh(dtype, {dims.B, dims.HV, dims.K});
            s.initial_key_sum = s.final_key_sum = *key_sums;
        }
    }

    /// A GPU's tensors may be many GB: it gets one batch row of random numbers, repeated.
    void fill() {
        zero(o);
        if (device.kind == DeviceKind::kCpu) {
            fill_inputs(spec, input_options, inputs);
            if (states) fill_normal(*states, input_options.seed, "states");
            if (key_sums) fill_normal(*key_sums, input_options.seed, "key_sums");
            return;
        }
        Dims one_row = dims;
        one_row.B = 1;
        const OwnedInputs rows = random_inputs(spec, one_row, input_options);
        for (std::size_t i = 0; i < rows.size(); ++i) repeat(inputs[i].second, rows[i].second);
        if (states) fill_rows(*states, "states");
        if (key_sums) fill_rows(*key_sums, "key_sums");
    }

    void fill_rows(const Tensor& tensor, std::string_view name) const {
        const Tensor row = Tensor::empty(tensor.dtype(), tensor.view().sliced(0, 0, 1).shape());
        fill_normal(row, input_options.seed, name);
        repeat(tensor, row);
    }

    [[nodiscard]] std::int64_t io_bytes() const {
        std::size_t bytes = o.size_bytes();
        for (const auto& [name, tensor] : inputs) bytes += tensor.size_bytes();
        for (const auto& tensor : {states, key_sums, slots}) {
            if (tensor) bytes += tensor->size_bytes();
        }
        return static_cast<std::int64_t>(bytes);
    }

    Plan run() const {
        return phase == Phase::kPrefill ? forward(spec, arguments, options)
                                        : step(spec, arguments, options);
    }
};

/// Each optional input that was asked for is one of the spec's.
void check_optional_inputs(const Spec& spec, const VariantRequest& request) {
    for (const auto& [name, shape] : request.tensors) {
        if (spec.find_input(name) == nullptr) {
            throw Error(ErrorCode::kSurplus, name, "asked for as an optional input",
                        "an input that this form of " + spec.name + " reads");
        }
    }
}

std::shared_ptr<Recurrence> make_call(const BenchCase& row, const Record& record) {
    auto call = std::make_shared<Recurrence>();
    call->spec = make_spec(row.op, row.request);
    check_optional_inputs(call->spec, row.request);
    call->device = row.device;
    call->dims = record.dims;
    call->phase = row.phase;
    call->input_options = {row.seed, row.gates, row.dtype, row.gate_dtype};
    call->options.backend = row.backend;
    call->options.algorithm = row.algorithm;
    call->options.precision = row.precision;
    call->options.threads = row.threads;
    call->allocate(record.state_dtype);
    return call;
}

void add_plan(const Plan& plan, const Problem& problem, Record& record) {
    record.kernel = plan.kernel;
    record.precision = to_string(plan.precision);
    record.threads = plan.threads;
    record.plan_hash = fmt::format("{:016x}", plan.hash());
    record.predicted_us = plan.predicted_us;
    if (record.predicted_us <= 0) {
        const Work steps = work(problem.spec, shape_of(problem), Phase::kDecode);
        record.predicted_us = 1e6 * steps.flops / (kTimeLoopFlopsPerCorePerS * plan.threads);
    }
}

Job make_recurrence_job(const BenchCase& row) {
    Job job;
    job.device = row.device;
    Record& record = job.record = start_record(row);
    record.gates = to_string(row.gates);
    record.state_dtype = row.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    record.backend = row.backend;
    record.kernel = to_string(row.algorithm);
    record.precision = to_string(row.precision);

    const std::shared_ptr<Recurrence> call = make_call(row, record);
    record.io_bytes = call->io_bytes();
    const Problem problem = bind(call->spec, call->arguments, call->options, row.phase);
    add_work(work(problem), row.device, record);
    const Backend& backend = find_backend(row.backend);
    if (const Support support = backend.supports(problem); !support.ok) {
        record.skipped = fmt::format("not supported by {}: {}", row.backend, support.reason);
        return job;
    }
    // Predictions for a CPU need its rates; a GPU's planner has its own.
    const Plan plan = backend.plan(
        problem, row.device.kind == DeviceKind::kCpu ? host_device() : nominal_device(row.device));
    add_plan(plan, problem, record);
    job.workspace_bytes = plan.workspace_bytes;
    job.fill = [call] { call->fill(); };
    job.run = [call] { return call->run(); };
    return job;
}

/// The tensors of a softmax attention.
struct Attention {
    Attention(const Dims& d, std::int64_t keys, DType dtype)
        : q(Tensor::empty(dtype, {d.B, d.T, d.HV, d.K})),
          k(Tensor::empty(dtype, {d.B, keys, d.H, d.K})),
          v(Tensor::empty(dtype, {d.B, keys, d.H, d.V})),
          o(Tensor::empty(dtype, {d.B, d.T, d.HV, d.V})) {}

    Tensor q, k, v, o;

    [[nodiscard]] baseline::SoftmaxArguments arguments() const { return {q, k, v, o}; }
    void fill(std::uint64_t seed) const {
        fill_normal(q, seed, "q");
        fill_normal(k, seed, "k");
        fill_normal(v, seed, "v");
        zero(o);
    }
};

void refuse_request(const VariantRequest& request) {
    std::string name;
    if (!request.tensors.empty()) name = request.tensors.begin()->first;
    if (!request.settings.empty()) name = request.settings.begin()->first;
    if (!name.empty()) {
        throw Error(ErrorCode::kSurplus, name, "given",
                    "no settings or optional inputs for softmax");
    }
}

Job make_softmax_job(const BenchCase& row) {
    refuse_request(row.request);
    Job job;
    Record& record = job.record = start_record(row);
    record.backend = "baseline";
    record.kernel = "online-softmax";
    record.precision = to_string(Precision::kFloat32);
    record.threads = row.threads > 0 ? row.threads : omp_get_max_threads();
    if (row.phase == Phase::kDecode) record.context = row.dims.T;
    if (row.device.kind != DeviceKind::kCpu) {
        record.skipped = "the baseline runs on the CPU only";
        return job;
    }
    const auto call = std::make_shared<Attention>(record.dims, row.dims.T, row.dtype);
    const Work work = baseline::softmax_work(call->arguments());
    add_work(work, row.device, record);
    record.io_bytes = static_cast<std::int64_t>(work.bytes());
    const Floor floor = floor_on(host_device(), work);
    record.predicted_us = std::max(floor.memory_us, floor.compute_us / kSoftmaxShare);
    job.workspace_bytes = baseline::softmax_workspace_bytes(call->arguments(), record.threads);
    job.fill = [call, seed = row.seed] { call->fill(seed); };
    job.run = [call, threads = row.threads] {
        baseline::softmax_attention(call->arguments(), {{}, threads});
        return std::optional<Plan>();
    };
    return job;
}

/// Whether a tensor of these dimensions has an int64 number of bytes, with room to spare.
bool is_addressable(const Dims& d) {
    constexpr double kLimit_bytes = 1e18;
    const auto product = [](std::initializer_list<std::int64_t> factors) {
        double value = 8;
        for (const std::int64_t factor : factors) value *= static_cast<double>(factor);
        return value;
    };
    const std::int64_t heads = std::max(d.H, d.HV);
    const std::int64_t channels = std::max(d.K, d.V);
    return product({d.B, d.T, heads, channels}) < kLimit_bytes &&
           product({d.B, heads, d.K, d.V}) < kLimit_bytes;
}

Job skipped_job(const BenchCase& row, std::string reason) {
    Job job;
    job.record = start_record(row);
    job.record.skipped = std::move(reason);
    return job;
}

}  // namespace

Job make_job(const BenchCase& row) {
    try {
        if (!is_addressable(row.dims)) throw std::bad_alloc();
        return row.op == kSoftmax ? make_softmax_job(row) : make_recurrence_job(row);
    } catch (const std::bad_alloc&) {
        return skipped_job(row, "its tensors cannot be allocated");
    } catch (const Error& error) {
        if (error.code() != ErrorCode::kMemory) throw;
        return skipped_job(row, "its tensors cannot be allocated: " + error.value());
    }
}

}  // namespace sluice::measure
