// What XLA hands to a function that its programs call, and what such a function may ask of it:
// XLA's foreign function interface, as far as it is used here.
//
// Types and numbers are that interface's public ABI, declared here so that neither building nor
// installing the package needs JAX. A test compares them with the header that jaxlib brings.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::python::xla {

inline constexpr int kApiMajor = 0, kApiMinor = 1;  // the oldest that has all of this

using Failure = struct FailureState;  // XLA_FFI_Error; whoever is handed one destroys it
using Context = struct ContextState;  // XLA_FFI_ExecutionContext: one execution of one call

enum class DataType : int {
    kBool = 1,
    kInt32 = 4,
    kInt64 = 5,
    kFloat16 = 10,
    kFloat32 = 11,
    kFloat64 = 12,
    kBFloat16 = 16,
};
enum class AttributeType : int { kArray = 1, kDictionary = 2, kScalar = 3, kString = 4 };
enum class FailureCode : int { kInvalidArgument = 3, kInternal = 13 };
inline constexpr int kBuffer = 1;             // the one type of arguments and of results
inline constexpr int kMetadataExtension = 1;  // XLA asks what the function is; it is not to run

struct Extension {
    std::size_t struct_bytes;
    int type;
    Extension* next;
};

/// What every structure begins with.
struct Header {
    std::size_t struct_bytes;
    Extension* extensions = nullptr;
};

struct Version {
    Header header;
    int major, minor;
};

struct Metadata {
    std::size_t struct_bytes;
    Version version;
    std::uint32_t traits;  // 1: may be captured in a graph and replayed
};

struct MetadataExtension {
    Extension extension;
    Metadata* metadata;
};

struct Text {
    const char* data;
    std::size_t size;
};

struct Scalar {
    DataType type;
    const void* value;
};

struct Buffer {
    Header header;
    DataType type;
    void* data;
    std::int64_t rank;
    std::int64_t* extents;  // row-major
};

struct Buffers {
    Header header;
    std::int64_t size;
    const int* types;
    Buffer* const* buffers;
};

struct Attributes {
    Header header;
    std::int64_t size;
    const AttributeType* types;
    const Text* const* names;
    const void* const* values;  // of Text, Scalar, …
};

struct FailureRequest {
    Header header{sizeof(FailureRequest)};
    const char* message;
    FailureCode code;
};

struct FailureRelease {
    Header header{sizeof(FailureRelease)};
    Failure* failure;
};

struct StreamRequest {
    Header header{sizeof(StreamRequest)};
    Context* context;
    void* stream = nullptr;  // CUstream
};

struct MemoryRequest {
    Header header{sizeof(MemoryRequest)};
    Context* context;
    std::size_t bytes, alignment;
    void* data = nullptr;
};

struct MemoryRelease {
    Header header{sizeof(MemoryRelease)};
    Context* context;
    std::size_t bytes;
    void* data;
};

struct DeviceRequest {
    Header header{sizeof(DeviceRequest)};
    Context* context;
    std::int32_t ordinal = 0;
};

/// XLA's functions. Those that nothing here calls have no type.
struct Api {
    using Unused = void (*)();
    Header header;
    Version version;
    const void* internals;
    Failure* (*failure_create)(FailureRequest*);
    Unused failure_message;
    void (*failure_destroy)(FailureRelease*);
    Unused handler_register;
    Failure* (*stream_get)(StreamRequest*);
    Unused type_register, context_get, state_set, state_get;
    Failure* (*memory_allocate)(MemoryRequest*);
    Failure* (*memory_free)(MemoryRelease*);
    Unused thread_schedule, thread_count, future_create, future_set, future_fail, run_id;
    Failure* (*device_get)(DeviceRequest*);
};

struct CallFrame {
    Header header;
    const Api* api;
    Context* context;
    int stage;
    Buffers arguments, results;
    Attributes attributes;
};

/// A function that XLA's programs call. Null: it went well.
using Handler = Failure*(CallFrame*);

}  // namespace sluice::python::xla
