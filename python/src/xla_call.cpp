#include "xla_call.hpp"

#include <array>
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/error.hpp"

namespace sluice::python {

namespace {

/// What XLA answered instead of what it was asked for: handed back to XLA.
struct Failed {
    xla::Failure* failure;
};

void check(xla::Failure* failure) {
    if (failure != nullptr) throw Failed{failure};
}

xla::Failure* failure(const xla::Api& api, xla::FailureCode code, const std::string& message) {
    xla::FailureRequest request{.message = message.c_str(), .code = code};
    return api.failure_create(&request);
}

xla::Failure* failure(const xla::Api& api, const Error& error) {
    return failure(api, xla::FailureCode::kInvalidArgument,
                   std::string("sluice.Error (") + to_string(error.code()) + ") " + error.what());
}

/// The function says what it is: one that XLA runs anew each time. It is not to be captured in a
/// graph, where kernels cannot be compiled and the workspace would be somebody else's in a replay.
xla::Failure* describe(const xla::MetadataExtension& extension) {
    extension.metadata->version.major = xla::kApiMajor;
    extension.metadata->version.minor = xla::kApiMinor;
    extension.metadata->traits = 0;
    return nullptr;
}

template <class Value>
const Value* attribute(const xla::Attributes& attributes, std::string_view name,
                       xla::AttributeType type) {
    for (std::int64_t i = 0; i < attributes.size; ++i) {
        const xla::Text& own = *attributes.names[i];
        if (std::string_view(own.data, own.size) == name && attributes.types[i] == type) {
            return static_cast<const Value*>(attributes.values[i]);
        }
    }
    return nullptr;
}

std::string declaration(const xla::Attributes& attributes) {
    const auto* text = attribute<xla::Text>(attributes, "call", xla::AttributeType::kString);
    if (text == nullptr) {
        throw Error(ErrorCode::kMissing, "call", "no such attribute", "the declaration of a call");
    }
    return {text->data, text->size};
}

std::optional<double> scale_of(const xla::Attributes& attributes) {
    const auto* scale = attribute<xla::Scalar>(attributes, "scale", xla::AttributeType::kScalar);
    if (scale == nullptr) return std::nullopt;
    if (scale->type != xla::DataType::kFloat64) {
        throw Error(ErrorCode::kDType, "scale", "another type", "float64");
    }
    return *static_cast<const double*>(scale->value);
}

DType to_dtype(const std::string& name, xla::DataType type) {
    constexpr std::pair<xla::DataType, DType> kTypes[] = {
        {xla::DataType::kBool, DType::kBool},         {xla::DataType::kInt32, DType::kInt32},
        {xla::DataType::kInt64, DType::kInt64},       {xla::DataType::kFloat16, DType::kFloat16},
        {xla::DataType::kFloat32, DType::kFloat32},   {xla::DataType::kFloat64, DType::kFloat64},
        {xla::DataType::kBFloat16, DType::kBFloat16},
    };
    for (const auto& [theirs, ours] : kTypes) {
        if (theirs == type) return ours;
    }
    throw Error(ErrorCode::kDType, name,
                "XLA's element type " + std::to_string(static_cast<int>(type)),
                "float64, float32, bfloat16, float16, int64, int32 or bool");
}

void append_views(const xla::Buffers& buffers, const Device& device, const std::vector<Slot>& slots,
                  std::vector<TensorView>& views) {
    for (std::int64_t i = 0; i < buffers.size; ++i) {
        if (views.size() == slots.size() || buffers.types[i] != xla::kBuffer) {
            throw Error(ErrorCode::kSurplus, "call", "another argument",
                        std::to_string(slots.size()) + " buffers");
        }
        const xla::Buffer& buffer = *buffers.buffers[i];
        const std::string& name = slots[views.size()].name;
        views.emplace_back(buffer.data, to_dtype(name, buffer.type),
                           std::span(buffer.extents, static_cast<std::size_t>(buffer.rank)),
                           device);
    }
}

/// Device memory of XLA's. As XLA's own temporary memory it is given back while kernels still use
/// it: whoever gets it next is behind them in the stream's order.
class Workspace {
  public:
    explicit Workspace(const xla::CallFrame& frame) : frame_(frame) {}
    ~Workspace() {
        if (memory_.data == nullptr) return;
        xla::MemoryRelease release{
            .context = frame_.context, .bytes = memory_.bytes, .data = memory_.data};
        xla::Failure* const failure = frame_.api->memory_free(&release);
        if (failure == nullptr) return;
        xla::FailureRelease unheard{.failure = failure};
        frame_.api->failure_destroy(&unheard);
    }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    void* allocate(std::int64_t bytes) {
        constexpr std::size_t kAlignment = 256;  // kernels want more than XLA lets one ask for
        memory_.context = frame_.context;
        memory_.bytes = static_cast<std::size_t>(bytes) + kAlignment - 1;
        check(frame_.api->memory_allocate(&memory_));
        const std::size_t beyond = reinterpret_cast<std::uintptr_t>(memory_.data) % kAlignment;
        return static_cast<std::byte*>(memory_.data) + (beyond == 0 ? 0 : kAlignment - beyond);
    }

  private:
    const xla::CallFrame& frame_;
    xla::MemoryRequest memory_{.context = nullptr, .bytes = 0, .alignment = 1};
};

void run(const xla::CallFrame& frame, DeviceKind kind) {
    Device device{kind};
    xla::StreamRequest stream{.context = frame.context};
    if (kind == DeviceKind::kCuda) {
        xla::DeviceRequest place{.context = frame.context};
        check(frame.api->device_get(&place));
        check(frame.api->stream_get(&stream));
        device.index = place.ordinal;
    }
    DeclaredCall& call = declared(declare(declaration(frame.attributes)));
    std::vector<TensorView> views;
    views.reserve(call.slots().size());
    append_views(frame.arguments, device, call.slots(), views);
    append_views(frame.results, device, call.slots(), views);
    if (views.size() != call.slots().size()) {
        throw Error(ErrorCode::kMissing, call.slots()[views.size()].name, "nothing",
                    std::to_string(call.slots().size()) + " buffers");
    }
    Workspace workspace(frame);
    run_given(call, views, scale_of(frame.attributes), stream.stream,
              [&](std::int64_t bytes) { return workspace.allocate(bytes); });
}

template <DeviceKind kKind>
xla::Failure* handle(xla::CallFrame* frame) noexcept {
    const xla::Extension* extension = frame->header.extensions;
    if (extension != nullptr && extension->type == xla::kMetadataExtension) {
        return describe(*reinterpret_cast<const xla::MetadataExtension*>(extension));  // NOLINT
    }
    try {
        run(*frame, kKind);
        return nullptr;
    } catch (const Failed& failed) {
        return failed.failure;
    } catch (const Error& error) {
        return failure(*frame->api, error);
    } catch (const std::exception& error) {
        return failure(*frame->api, xla::FailureCode::kInternal, error.what());
    }
}

}  // namespace

xla::Handler* xla_handler(DeviceKind kind) noexcept {
    return kind == DeviceKind::kCuda ? handle<DeviceKind::kCuda> : handle<DeviceKind::kCpu>;
}

}  // namespace sluice::python
