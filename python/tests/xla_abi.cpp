// Compiled by test_jax.py: xla_abi.hpp against the header that jaxlib brings.
#include "xla_abi.hpp"

#include "xla/ffi/api/c_api.h"

namespace ours = sluice::python::xla;

#define SAME_SIZE(own, theirs) static_assert(sizeof(ours::own) == sizeof(theirs))
#define SAME_PLACE(own, field, theirs, their_field)                              \
    static_assert(offsetof(ours::own, field) == offsetof(theirs, their_field) && \
                  sizeof(ours::own::field) == sizeof(theirs::their_field))
#define SAME_NUMBER(own, theirs) static_assert(static_cast<int>(ours::own) == (theirs))

SAME_NUMBER(kApiMajor, XLA_FFI_API_MAJOR);
static_assert(ours::kApiMinor <= XLA_FFI_API_MINOR);
SAME_NUMBER(DataType::kBool, XLA_FFI_DataType_PRED);
SAME_NUMBER(DataType::kInt32, XLA_FFI_DataType_S32);
SAME_NUMBER(DataType::kInt64, XLA_FFI_DataType_S64);
SAME_NUMBER(DataType::kFloat16, XLA_FFI_DataType_F16);
SAME_NUMBER(DataType::kFloat32, XLA_FFI_DataType_F32);
SAME_NUMBER(DataType::kFloat64, XLA_FFI_DataType_F64);
SAME_NUMBER(DataType::kBFloat16, XLA_FFI_DataType_BF16);
SAME_NUMBER(AttributeType::kArray, XLA_FFI_AttrType_ARRAY);
SAME_NUMBER(AttributeType::kDictionary, XLA_FFI_AttrType_DICTIONARY);
SAME_NUMBER(AttributeType::kScalar, XLA_FFI_AttrType_SCALAR);
SAME_NUMBER(AttributeType::kString, XLA_FFI_AttrType_STRING);
SAME_NUMBER(FailureCode::kInvalidArgument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME_NUMBER(FailureCode::kInternal, XLA_FFI_Error_Code_INTERNAL);
SAME_NUMBER(kBuffer, XLA_FFI_ArgType_BUFFER);
SAME_NUMBER(kBuffer, XLA_FFI_RetType_BUFFER);
SAME_NUMBER(kMetadataExtension, XLA_FFI_Extension_Metadata);

SAME_PLACE(Metadata, version, XLA_FFI_Metadata, api_version);
SAME_PLACE(Metadata, traits, XLA_FFI_Metadata, traits);
SAME_PLACE(Version, major, XLA_FFI_Api_Version, major_version);
SAME_PLACE(Version, minor, XLA_FFI_Api_Version, minor_version);
SAME_PLACE(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME_PLACE(Extension, type, XLA_FFI_Metadata_Extension, extension_base.type);

SAME_SIZE(Text, XLA_FFI_ByteSpan);
SAME_PLACE(Text, data, XLA_FFI_ByteSpan, ptr);
SAME_PLACE(Text, size, XLA_FFI_ByteSpan, len);
SAME_SIZE(Scalar, XLA_FFI_Scalar);
SAME_PLACE(Scalar, type, XLA_FFI_Scalar, dtype);
SAME_PLACE(Scalar, value, XLA_FFI_Scalar, value);

SAME_SIZE(Buffer, XLA_FFI_Buffer);
SAME_PLACE(Buffer, type, XLA_FFI_Buffer, dtype);
SAME_PLACE(Buffer, data, XLA_FFI_Buffer, data);
SAME_PLACE(Buffer, rank, XLA_FFI_Buffer, rank);
SAME_PLACE(Buffer, extents, XLA_FFI_Buffer, dims);
SAME_SIZE(Buffers, XLA_FFI_Args);
SAME_PLACE(Buffers, size, XLA_FFI_Args, size);
SAME_PLACE(Buffers, types, XLA_FFI_Args, types);
SAME_PLACE(Buffers, buffers, XLA_FFI_Args, args);
SAME_SIZE(Buffers, XLA_FFI_Rets);
SAME_PLACE(Buffers, size, XLA_FFI_Rets, size);
SAME_PLACE(Buffers, types, XLA_FFI_Rets, types);
SAME_PLACE(Buffers, buffers, XLA_FFI_Rets, rets);
SAME_SIZE(Attributes, XLA_FFI_Attrs);
SAME_PLACE(Attributes, size, XLA_FFI_Attrs, size);
SAME_PLACE(Attributes, types, XLA_FFI_Attrs, types);
SAME_PLACE(Attributes, names, XLA_FFI_Attrs, names);
SAME_PLACE(Attributes, values, XLA_FFI_Attrs, attrs);

SAME_PLACE(CallFrame, header.extensions, XLA_FFI_CallFrame, extension_start);
SAME_PLACE(CallFrame, api, XLA_FFI_CallFrame, api);
SAME_PLACE(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME_PLACE(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME_PLACE(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME_PLACE(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME_PLACE(CallFrame, attributes, XLA_FFI_CallFrame, attrs);

SAME_SIZE(FailureRequest, XLA_FFI_Error_Create_Args);
SAME_PLACE(FailureRequest, message, XLA_FFI_Error_Create_Args, message);
SAME_PLACE(FailureRequest, code, XLA_FFI_Error_Create_Args, errc);
SAME_SIZE(FailureRelease, XLA_FFI_Error_Destroy_Args);
SAME_PLACE(FailureRelease, failure, XLA_FFI_Error_Destroy_Args, error);
SAME_SIZE(StreamRequest, XLA_FFI_Stream_Get_Args);
SAME_PLACE(StreamRequest, context, XLA_FFI_Stream_Get_Args, ctx);
SAME_PLACE(StreamRequest, stream, XLA_FFI_Stream_Get_Args, stream);
SAME_SIZE(MemoryRequest, XLA_FFI_DeviceMemory_Allocate_Args);
SAME_PLACE(MemoryRequest, context, XLA_FFI_DeviceMemory_Allocate_Args, ctx);
SAME_PLACE(MemoryRequest, bytes, XLA_FFI_DeviceMemory_Allocate_Args, size);
SAME_PLACE(MemoryRequest, alignment, XLA_FFI_DeviceMemory_Allocate_Args, alignment);
SAME_PLACE(MemoryRequest, data, XLA_FFI_DeviceMemory_Allocate_Args, data);
SAME_SIZE(MemoryRelease, XLA_FFI_DeviceMemory_Free_Args);
SAME_PLACE(MemoryRelease, context, XLA_FFI_DeviceMemory_Free_Args, ctx);
SAME_PLACE(MemoryRelease, bytes, XLA_FFI_DeviceMemory_Free_Args, size);
SAME_PLACE(MemoryRelease, data, XLA_FFI_DeviceMemory_Free_Args, data);
SAME_SIZE(DeviceRequest, XLA_FFI_DeviceOrdinal_Get_Args);
SAME_PLACE(DeviceRequest, context, XLA_FFI_DeviceOrdinal_Get_Args, ctx);
SAME_PLACE(DeviceRequest, ordinal, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);

SAME_PLACE(Api, version, XLA_FFI_Api, api_version);
SAME_PLACE(Api, failure_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME_PLACE(Api, failure_destroy, XLA_FFI_Api, XLA_FFI_Error_Destroy);
SAME_PLACE(Api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME_PLACE(Api, memory_allocate, XLA_FFI_Api, XLA_FFI_DeviceMemory_Allocate);
SAME_PLACE(Api, memory_free, XLA_FFI_Api, XLA_FFI_DeviceMemory_Free);
SAME_PLACE(Api, device_get, XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
