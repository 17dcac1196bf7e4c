#include "support/instance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "support/on_device.hpp"

namespace sluice::test {

namespace {

bool is_pool(States states) { return states >= States::kPool; }
bool reads(States states) { return states >= States::kDense; }
bool in_place(States states) {
    return states == States::kInPlace || states == States::kPoolInPlace ||
           states == States::kPoolShift;
}
bool masked(States states) { return states == States::kMasked || states == States::kPoolMasked; }

bool is_gate(const std::string& name) { return name == "g" || name == "g_raw" || name == "dt"; }
bool is_per_token(const Input& input) {
    return std::find(input.axes.begin(), input.axes.end(), Axis::kT) != input.axes.end();
}

std::vector<std::int64_t> permutation(std::int64_t n, Random& random) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(order);
    return order;
}

/// What a state's memory may look like: pools have their own slot stride.
Strides state_strides(Strides strides) {
    return strides == Strides::kReversed || strides == Strides::kExpanded ? Strides::kPadded
                                                                          : strides;
}

}  // namespace

Instance::Instance(const Case& c) : case_(c), spec_(c.form->make()) {
    options_.state_layout = c.layout;
    options_.precision = c.precision;
    options_.algorithm = c.algorithm;
    options_.chunk = c.chunk;
    options_.threads = c.threads;
    make_inputs();
    make_states();
}

Guarded& Instance::keep(std::string name, Guarded tensor) {
    return tensors_.insert_or_assign(std::move(name), std::move(tensor)).first->second;
}

TensorView Instance::index_vector(const char* name, const std::vector<std::int64_t>& values,
                                  DType dtype) {
    if (dtype == DType::kInt64 && case_.seed % 2 == 0) dtype = DType::kInt32;
    const auto count = static_cast<std::int64_t>(values.size());
    return keep(name, Guarded::indices({count}, values, dtype)).view();
}

std::vector<std::int64_t> Instance::state_shape(std::int64_t slots, bool key_sum) const {
    const Dims& d = case_.dims;
    if (key_sum) return {slots, d.HV, d.K};
    if (case_.layout == StateLayout::kKeyFirst) return {slots, d.HV, d.K, d.V};
    return {slots, d.HV, d.V, d.K};
}

void Instance::make_inputs() {
    const auto values = make_values(*case_.form, spec_, case_.dims, case_.kinds, case_.seed);
    for (const Input& input : spec_.inputs) {
        DType dtype = is_gate(input.name) ? case_.gate_dtype : case_.dtype;
        if (!is_per_token(input) && case_.dtype != DType::kFloat64) dtype = DType::kFloat32;
        const Guarded& tensor =
            keep(input.name, Guarded::input(values.at(input.name), dtype, case_.strides,
                                            case_.poison, case_.alignment));
        arguments_.inputs.emplace_back(input.name, tensor.view());
    }
    // The order of the arguments is the caller's.
    std::rotate(arguments_.inputs.begin(),
                arguments_.inputs.begin() +
                    static_cast<std::ptrdiff_t>(case_.seed % arguments_.inputs.size()),
                arguments_.inputs.end());
    const Dims& d = case_.dims;
    arguments_.o = keep("o", Guarded::output({d.B, d.T, d.HV, d.V}, case_.o_dtype, case_.strides,
                                             case_.alignment))
                       .view();
    std::int64_t begin = 0;
    for (std::int64_t n = 0; n < d.N; ++n) {
        Sequence sequence;
        const bool packed = !case_.lengths.empty();
        sequence.batch = packed ? 0 : n;
        sequence.begin = packed ? begin : 0;
        sequence.end = packed ? begin + case_.lengths[static_cast<std::size_t>(n)] : d.T;
        begin = sequence.end;
        sequences_.push_back(sequence);
    }
    if (case_.packing != Packing::kDense) {
        std::vector<std::int64_t> offsets = {0};
        for (const Sequence& s : sequences_) offsets.push_back(s.end);
        const DType dtype = case_.packing == Packing::kInt32 ? DType::kInt32 : DType::kInt64;
        arguments_.cu_seqlens =
            keep("cu_seqlens",
                 Guarded::indices({static_cast<std::int64_t>(offsets.size())}, offsets, dtype))
                .view();
    }
}

void Instance::choose_slots(Random& random) {
    const std::int64_t n = case_.dims.N;
    initial_slots_ = final_slots_ = n;
    if (!is_pool(case_.states)) return;
    initial_slots_ = final_slots_ = 2 * n + 3;
    write_slots_ = permutation(final_slots_, random);
    if (case_.states == States::kPoolInPlace) {
        read_slots_ = write_slots_;
        for (auto& slot : read_slots_) slot = random.chance(0.2) ? -1 : slot;
    } else if (case_.states == States::kPoolShift) {
        // Slots past the first n of the permutation are written by nobody: free to be read.
        for (std::int64_t i = 0; i < n; ++i) {
            read_slots_.push_back(write_slots_[static_cast<std::size_t>(n + random.below(n + 3))]);
        }
    } else {
        for (std::int64_t i = 0; i < n; ++i) {
            read_slots_.push_back(random.chance(0.3) ? -1 : random.below(initial_slots_));
            auto& slot = write_slots_[static_cast<std::size_t>(i)];
            slot = random.chance(0.2) ? -1 : slot;
        }
    }
    read_slots_.resize(static_cast<std::size_t>(n));
    write_slots_.resize(static_cast<std::size_t>(n));
}

void Instance::make_state_pair(bool key_sum) {
    StateArguments& s = arguments_.state;
    const std::string suffix = key_sum ? "_key_sum" : "";
    const Strides strides = state_strides(case_.strides);
    std::optional<TensorView>& initial = key_sum ? s.initial_key_sum : s.initial;
    std::optional<TensorView>& final = key_sum ? s.final_key_sum : s.final;
    if (reads(case_.states)) {
        Values values = normal_values(state_shape(initial_slots_, key_sum), 0.5,
                                      mix_seed(case_.seed, key_sum ? 5 : 4));
        // A sum of mapped keys is positive wherever a normaliser is.
        if (key_sum) {
            for (double& x : values.data) x = std::abs(x);
        }
        initial = keep("initial" + suffix, Guarded::input(values, case_.state_dtype, strides,
                                                          case_.poison, case_.alignment))
                      .view();
    }
    if (in_place(case_.states)) {
        final = initial;
    } else {
        final = keep("final" + suffix, Guarded::output(state_shape(final_slots_, key_sum),
                                                       case_.state_dtype, strides, case_.alignment))
                    .view();
    }
}

void Instance::make_checkpoints(Random& random) {
    std::vector<std::int64_t> sequences, positions;
    for (std::int64_t n = 0; n < case_.dims.N; ++n) {
        const std::int64_t length = sequences_[static_cast<std::size_t>(n)].length();
        for (std::int64_t position = 0; position <= length; position += 64) {
            if (random.chance(0.3)) continue;
            sequences.push_back(n);
            positions.push_back(position);
        }
    }
    const auto count = static_cast<std::int64_t>(positions.size());
    checkpoint_slots_ = permutation(count + 3, random);
    checkpoint_slots_.resize(static_cast<std::size_t>(count));
    for (auto& slot : checkpoint_slots_) slot = random.chance(0.1) ? -1 : slot;
    StateArguments& s = arguments_.state;
    s.checkpoint_sequences = index_vector("checkpoint_sequences", sequences);
    s.checkpoint_positions = index_vector("checkpoint_positions", positions);
    s.checkpoint_slots = index_vector("checkpoint_slots", checkpoint_slots_);
    s.checkpoints =
        keep("checkpoints", Guarded::output(state_shape(count + 3, false), case_.state_dtype,
                                            state_strides(case_.strides), case_.alignment))
            .view();
}

void Instance::make_states() {
    Random random(mix_seed(case_.seed, 3));
    if (case_.states != States::kNone) {
        choose_slots(random);
        make_state_pair(false);
        if (spec_.normalize) make_state_pair(true);
        StateArguments& s = arguments_.state;
        if (is_pool(case_.states)) {
            s.read_slots = index_vector("read_slots", read_slots_);
            s.write_slots = index_vector("write_slots", write_slots_);
        }
        if (masked(case_.states)) {
            std::vector<std::int64_t> mask;
            for (std::int64_t n = 0; n < case_.dims.N; ++n) mask.push_back(random.below(2));
            s.has_initial = index_vector("has_initial", mask, DType::kBool);
        }
    }
    if (case_.checkpoints) make_checkpoints(random);
}

void Instance::run_oracle() {
    Arguments arguments = arguments_;
    Options options;
    options.backend = "oracle";
    options.state_layout = options_.state_layout;
    const auto fresh = [](const TensorView& like) {
        return Tensor::zeros(DType::kFloat64, like.shape());
    };
    o_ = fresh(arguments.o);
    arguments.o = o_;
    StateArguments& s = arguments.state;
    for (auto [given, own] :
         {std::pair{&s.final, &final_}, std::pair{&s.checkpoints, &checkpoints_},
          std::pair{&s.final_key_sum, &final_key_sum_}}) {
        if (!*given) continue;
        *own = fresh(**given);
        *given = own->view();
    }
    if (case_.phase == Phase::kPrefill) {
        forward(spec_, arguments, options);
    } else {
        step(spec_, arguments, options);
    }
}

Finding Instance::finding(const char* name, Quantity quantity, const std::vector<Block>& blocks,
                          DType stored) const {
    const Precision precision = plan_.precision;
    const double rounding = storage_bound(precision, stored);
    return {name, quantity, compare(blocks),
            bound(precision, spec_.update, quantity, case_.regime()) + rounding, rounding > 0};
}

void Instance::compare_states(const char* name, const TensorView& result,
                              const TensorView& reference, const std::vector<std::int64_t>& slots,
                              std::vector<Finding>& findings) {
    std::vector<Block> blocks;
    for (const std::int64_t slot : slots) {
        if (slot < 0) continue;
        const auto one = [&](const TensorView& view) { return view.sliced(0, slot, slot + 1); };
        for (Block& block : head_blocks(one(result), one(reference))) {
            block.where = fmt::format("slot {} {}", slot, block.where);
            blocks.push_back(block);
        }
    }
    findings.push_back(finding(name, Quantity::kState, blocks, result.dtype));
}

std::vector<Finding> Instance::judge(const std::string& backend) {
    run_oracle();
    options_.backend = backend;
    std::vector<Range> guards;
    for (const auto& [name, tensor] : tensors_) {
        const auto begin = reinterpret_cast<std::uintptr_t>(tensor.memory().data());
        guards.push_back({begin, begin + tensor.memory().size()});
    }
    plan_ = call(spec_, arguments_, options_, case_.phase, guards);
    std::vector<Finding> findings;
    findings.push_back(
        finding("o", Quantity::kOutput, token_blocks(arguments_.o, o_, sequences_), case_.o_dtype));
    std::vector<std::int64_t> written = write_slots_;
    if (written.empty()) {
        written.resize(static_cast<std::size_t>(final_slots_));
        std::iota(written.begin(), written.end(), 0);
    }
    const StateArguments& s = arguments_.state;
    if (s.final) compare_states("state.final", *s.final, final_, written, findings);
    if (s.final_key_sum) {
        compare_states("final_key_sum", *s.final_key_sum, final_key_sum_, written, findings);
    }
    if (s.checkpoints) {
        compare_states("checkpoints", *s.checkpoints, checkpoints_, checkpoint_slots_, findings);
    }
    return findings;
}

std::vector<std::string> Instance::memory_faults() const {
    const StateArguments& s = arguments_.state;
    const auto slices = [](const TensorView& pool, const std::vector<std::int64_t>& slots) {
        std::vector<TensorView> parts;
        for (const std::int64_t slot : slots) {
            if (slot >= 0) parts.push_back(pool.sliced(0, slot, slot + 1));
        }
        return parts;
    };
    std::vector<std::string> faults;
    for (const auto& [name, tensor] : tensors_) {
        std::vector<TensorView> writable;
        const bool sum = name.ends_with("_key_sum");
        const bool state =
            name.starts_with("final") || (name.starts_with("initial") && in_place(case_.states));
        if (name == "o") writable = {arguments_.o};
        if (name == "checkpoints") writable = slices(*s.checkpoints, checkpoint_slots_);
        if (state) {
            const TensorView& pool = sum ? *s.final_key_sum : *s.final;
            writable =
                is_pool(case_.states) ? slices(pool, write_slots_) : std::vector<TensorView>{pool};
        }
        if (!tensor.untouched_outside(writable)) faults.push_back(name);
    }
    return faults;
}

}  // namespace sluice::test
