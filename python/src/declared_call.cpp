#include "declared_call.hpp"

#include <algorithm>
#include <charconv>
#include <deque>
#include <shared_mutex>
#include <utility>

namespace sluice::python {

namespace {

struct StateSlot {
    std::string_view name;
    std::optional<TensorView> StateArguments::*member, StateArguments::*other = nullptr;
};

constexpr StateSlot kStateSlots[] = {
    {"state", &StateArguments::initial, &StateArguments::final},
    {"slots", &StateArguments::read_slots, &StateArguments::write_slots},
    {"initial_state", &StateArguments::initial},
    {"final_state", &StateArguments::final},
    {"read_slots", &StateArguments::read_slots},
    {"write_slots", &StateArguments::write_slots},
    {"has_initial", &StateArguments::has_initial},
    {"accepted", &StateArguments::accepted},
    {"checkpoints", &StateArguments::checkpoints},
    {"checkpoint_sequences", &StateArguments::checkpoint_sequences},
    {"checkpoint_positions", &StateArguments::checkpoint_positions},
    {"checkpoint_slots", &StateArguments::checkpoint_slots},
    {"initial_key_sum", &StateArguments::initial_key_sum},
    {"final_key_sum", &StateArguments::final_key_sum},
};

constexpr std::size_t kMostKept = 8;

/// Whether plans tell the two apart: by all but their address, and by how that is aligned.
bool alike(const TensorView& a, const TensorView& b) {
    constexpr std::uintptr_t kAlignment = 128;
    const auto offset = [](const TensorView& view) {
        return reinterpret_cast<std::uintptr_t>(view.data) % kAlignment;  // NOLINT: its last bits
    };
    return a.device == b.device && a.dtype == b.dtype && a.rank == b.rank &&
           a.extents == b.extents && a.stride_elements == b.stride_elements &&
           offset(a) == offset(b);
}

/// Cuts `text` after the first `separator`, if there is one, and returns what was before it.
std::string_view cut(std::string_view& text, char separator) {
    const std::string_view part = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    return part;
}

/// `text` is a name, then how the tensor is to be taken.
Slot make_slot(std::string_view text) {
    using Kind = Slot::Kind;
    Slot slot;
    slot.name = cut(text, ':');
    while (!text.empty()) {
        const std::string_view how = cut(text, ':');
        if (how == "bfloat16") {
            slot.bfloat16_bits = true;
        } else if (how == "first") {
            ++slot.firsts;
        } else if (how == "token") {
            slot.is_token = true;
        } else {
            throw Error(ErrorCode::kValue, slot.name, std::string(how), "bfloat16, first, token");
        }
    }
    if (slot.name == "out") slot.kind = Kind::kOut;
    if (slot.name == "cu_seqlens") slot.kind = Kind::kOffsets;
    if (slot.name == "workspace") slot.kind = Kind::kWorkspace;
    for (const StateSlot& state : kStateSlots) {
        if (state.name != slot.name) continue;
        slot.kind = Kind::kState;
        slot.members = {state.member, state.other};
    }
    return slot;
}

int parse_int(const std::string& name, const std::string& text) {
    int value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc{} || end != text.data() + text.size()) {
        throw Error(ErrorCode::kValue, name, "'" + text + "'", "a whole number");
    }
    return value;
}

bool parse_flag(const std::string& name, const std::string& text) {
    if (text == "true") return true;
    if (text == "false") return false;
    throw Error(ErrorCode::kValue, name, "'" + text + "'", "True or False");
}

StateLayout parse_layout(const std::string& text) {
    for (const StateLayout layout : {StateLayout::kKeyFirst, StateLayout::kValueFirst}) {
        if (text == to_string(layout)) return layout;
    }
    throw Error(ErrorCode::kValue, "state_layout", "'" + text + "'",
                std::string(to_string(StateLayout::kKeyFirst)) + ", " +
                    to_string(StateLayout::kValueFirst));
}

}  // namespace

DeclaredCall::DeclaredCall(std::string_view text) {
    while (!text.empty()) {
        const std::string_view item = cut(text, ';');
        const std::size_t split = item.find('=');
        read_item(item.substr(0, split), std::string(item.substr(split + 1)));
    }
}

void DeclaredCall::read_item(std::string_view key, std::string value) {
    constexpr std::string_view kSetting = "setting.", kOption = "option.";
    if (key == "phase") {
        phase_ = parse_phase(value);
    } else if (key == "variant") {
        variant_ = find_variant(value).name;
    } else if (key == "tensor") {
        slots_.push_back(make_slot(value));
        has_workspace_ |= slots_.back().kind == Slot::Kind::kWorkspace;
    } else if (key == "result") {
        const Slot slot = make_slot(value);
        results_.push_back({slot.name, slot.is_token});
    } else if (key.starts_with(kSetting)) {
        settings_[std::string(key.substr(kSetting.size()))] = std::move(value);
    } else if (key.starts_with(kOption)) {
        read_option(std::string(key.substr(kOption.size())), value);
    } else {
        throw Error(ErrorCode::kSurplus, std::string(key), value,
                    "phase, variant, tensor, result, setting.* or option.*");
    }
}

void DeclaredCall::read_option(const std::string& name, const std::string& value) {
    if (name == "state_layout") {
        options_.state_layout = parse_layout(value);
    } else if (name == "precision") {
        options_.precision = parse_precision(value);
    } else if (name == "backend") {
        options_.backend = find_backend(value).name();
    } else if (name == "algorithm") {
        options_.algorithm = parse_algorithm(value);
    } else if (name == "chunk") {
        options_.chunk = parse_int(name, value);
    } else if (name == "threads") {
        options_.threads = parse_int(name, value);
    } else if (name == "batch_invariant") {
        options_.batch_invariant = parse_flag(name, value);
    } else if (name == "validate") {
        options_.validate = parse_flag(name, value);
    } else if (name == "compile") {
        options_.compile = parse_flag(name, value);
    } else {
        throw Error(ErrorCode::kSurplus, name, value, "an option of a call");
    }
}

std::shared_ptr<const Spec> DeclaredCall::spec(std::span<const TensorView> views) {
    std::vector<int> ranks;
    ranks.reserve(slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].kind == Slot::Kind::kInput) ranks.push_back(views[i].rank);
    }
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Spec>& found = specs_[ranks];
    if (found == nullptr) {
        VariantRequest request;
        request.settings = settings_;
        for (std::size_t i = 0; i < slots_.size(); ++i) {
            if (slots_[i].kind != Slot::Kind::kInput) continue;
            const auto shape = views[i].shape();
            request.tensors[slots_[i].name].assign(shape.begin(), shape.end());
        }
        found = std::make_shared<const Spec>(make_spec(variant_, request));
    }
    return found;
}

Arguments DeclaredCall::arguments(std::span<const TensorView> views) const {
    Arguments arguments;
    for (const Slot& slot : slots_) {
        if (slot.kind == Slot::Kind::kInput) arguments.inputs.emplace_back(slot.name, TensorView());
    }
    replace(arguments, views);
    return arguments;
}

void DeclaredCall::replace(Arguments& arguments, std::span<const TensorView> views) const {
    auto input = arguments.inputs.begin();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const Slot& slot = slots_[i];
        switch (slot.kind) {
            case Slot::Kind::kInput: (input++)->second = views[i]; break;
            case Slot::Kind::kOut: arguments.o = views[i]; break;
            case Slot::Kind::kOffsets: arguments.cu_seqlens = views[i]; break;
            case Slot::Kind::kWorkspace: arguments.workspace = views[i]; break;
            case Slot::Kind::kState:
                for (const auto member : slot.members) {
                    if (member != nullptr) arguments.state.*member = views[i];
                }
                break;
        }
    }
}

std::vector<Output> DeclaredCall::outputs(const Spec& spec, const Arguments& arguments) const {
    if (results_.empty()) return {};
    const Dims d = infer_dims(spec, arguments);
    const auto is_float64 = [](const auto& input) { return input.second.dtype == DType::kFloat64; };
    const bool wide = options_.precision == Precision::kFloat64 ||
                      (options_.precision == Precision::kAuto &&
                       std::all_of(arguments.inputs.begin(), arguments.inputs.end(), is_float64));
    const DType state_dtype = wide ? DType::kFloat64 : DType::kFloat32;
    const bool value_first =
        options_.state_layout.value_or(spec.default_state_layout) == StateLayout::kValueFirst;
    // The values' dtype: that of v, or of what stands for it (mamba2's x).
    const auto values =
        std::find_if(arguments.inputs.begin(), arguments.inputs.end(), [&](const auto& input) {
            const Input* declared = spec.find_input(input.first);
            return declared->axes == std::vector{Axis::kB, Axis::kT, Axis::kHV, Axis::kV};
        });
    std::vector<Output> outputs;
    for (const auto& [name, is_token] : results_) {
        if (name == "out" && is_token) {
            outputs.push_back({name, values->second.dtype, {d.B, d.HV, d.V}, true});
        } else if (name == "out") {
            outputs.push_back({name, values->second.dtype, {d.B, d.T, d.HV, d.V}});
        } else if (name == "final_state") {
            outputs.push_back(
                {name, state_dtype, {d.N, d.HV, value_first ? d.V : d.K, value_first ? d.K : d.V}});
        } else {
            outputs.push_back({name, state_dtype, {d.N, d.HV, d.K}});
        }
    }
    return outputs;
}

std::unique_ptr<BoundCall> DeclaredCall::take(std::span<const TensorView> views,
                                              const std::optional<double>& scale) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(), [&](const auto& call) {
        return call->options.scale == scale && std::ranges::equal(call->views, views, alike);
    });
    if (found == kept_.rend()) return nullptr;
    std::unique_ptr<BoundCall> call = std::move(*found);
    kept_.erase(std::next(found).base());
    return call;
}

void DeclaredCall::keep(std::unique_ptr<BoundCall> call) {
    std::unique_ptr<BoundCall> oldest;  // freed after the lock
    const std::lock_guard lock(mutex_);
    if (kept_.size() == kMostKept) {
        oldest = std::move(kept_.front());
        kept_.erase(kept_.begin());
    }
    kept_.push_back(std::move(call));
}

void DeclaredCall::attach(Arguments& arguments, const std::string& name, const TensorView& view) {
    if (name == "out") {
        arguments.o = view;
    } else if (name == "final_state") {
        arguments.state.final = view;
    } else {
        arguments.state.final_key_sum = view;
    }
}

namespace {

struct Registry {
    std::shared_mutex mutex;
    std::map<std::string, std::int64_t> numbers;
    std::deque<DeclaredCall> calls;  // addresses stay
};

Registry& registry() {
    static Registry registry;
    return registry;
}

}  // namespace

std::int64_t declare(const std::string& text) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    if (const auto it = all.numbers.find(text); it != all.numbers.end()) return it->second;
    all.calls.emplace_back(text);
    const auto number = static_cast<std::int64_t>(all.calls.size()) - 1;
    all.numbers.emplace(text, number);
    return number;
}

DeclaredCall& declared(std::int64_t number) {
    Registry& all = registry();
    const std::shared_lock lock(all.mutex);
    return all.calls.at(static_cast<std::size_t>(number));
}

}  // namespace sluice::python
