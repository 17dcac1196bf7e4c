#include "sluice/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/file.hpp"
#include "io/safetensors_header.hpp"
#include "sluice/error.hpp"

namespace sluice {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

/// Bytes that are read once, front to back.
class Source {
  public:
    Source(std::string name, std::int64_t size) : name_(std::move(name)), left_(size) {}
    virtual ~Source() = default;
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] std::int64_t left() const { return left_; }

    /// `bytes` is at most left().
    void read(void* out, std::int64_t bytes) {
        if (bytes == 0) return;
        copy(out, static_cast<std::size_t>(bytes));
        left_ -= bytes;
    }

  private:
    virtual void copy(void* out, std::size_t bytes) = 0;
    std::string name_;
    std::int64_t left_;
};

class MemorySource : public Source {
  public:
    MemorySource(std::span<const std::byte> bytes, const std::string& name)
        : Source(name, static_cast<std::int64_t>(bytes.size())), next_(bytes.data()) {}

  private:
    void copy(void* out, std::size_t bytes) override {
        std::memcpy(out, next_, bytes);
        next_ += bytes;
    }
    const std::byte* next_;
};

class FileSource : public Source {
  public:
    FileSource(FileHandle handle, std::int64_t size, const std::string& name)
        : Source(name, size), handle_(std::move(handle)) {}

  private:
    void copy(void* out, std::size_t bytes) override {
        if (std::fread(out, 1, bytes, handle_.get()) != bytes) {
            refuse_file(name(), "a file that ends early or cannot be read", "a readable file");
        }
    }
    FileHandle handle_;
};

/// Any other byte in a bool is undefined behaviour for whoever reads it as one.
void check_bools(const Tensor& tensor, const std::string& name, const std::string& file) {
    if (tensor.dtype() != DType::kBool) return;
    const auto* bytes = static_cast<const unsigned char*>(tensor.view().data);
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
        if (bytes[i] > 1) {
            refuse_file(file, fmt::format("byte {} in bool tensor {}", bytes[i], printable(name)),
                        "0 or 1");
        }
    }
}

TensorFile parse(Source& source) {
    constexpr std::int64_t kPrefixBytes = 8;
    if (source.left() < kPrefixBytes) {
        refuse_file(source.name(), fmt::format("{} bytes", source.left()),
                    "a safetensors file (at least 8 bytes)");
    }
    std::uint64_t header_bytes = 0;
    source.read(&header_bytes, kPrefixBytes);
    if (header_bytes > kMaxHeaderBytes) {
        refuse_file(source.name(), fmt::format("a header of {} bytes", header_bytes),
                    fmt::format("at most {} bytes", kMaxHeaderBytes));
    }
    if (static_cast<std::int64_t>(header_bytes) > source.left()) {
        refuse_file(source.name(),
                    fmt::format("a header of {} bytes in a file of {}", header_bytes,
                                source.left() + kPrefixBytes),
                    "a header inside the file (a truncated file?)");
    }
    std::string json(header_bytes, '\0');
    source.read(json.data(), static_cast<std::int64_t>(header_bytes));
    SafetensorsHeader header = parse_header(json, source.left(), source.name());

    TensorFile file;
    file.metadata = std::move(header.metadata);
    for (const TensorEntry& entry : header.tensors) {
        const Tensor tensor = Tensor::empty(entry.dtype, entry.shape);
        source.read(tensor.view().data, entry.end - entry.begin);
        check_bools(tensor, entry.name, source.name());
        file.tensors.emplace(entry.name, tensor);
    }
    return file;
}

/// Widest elements first: then every tensor is aligned to its element, since none may be padded.
std::vector<TensorEntry> lay_out(const TensorFile& file, const std::string& name) {
    std::vector<TensorEntry> entries;
    for (const auto& [tensor_name, tensor] : file.tensors) {
        if (!tensor.defined()) {
            refuse_file(name, fmt::format("tensor {} without memory", printable(tensor_name)),
                        "tensors that are defined");
        }
        check_bools(tensor, tensor_name, name);
        entries.push_back({tensor_name,
                           tensor.dtype(),
                           {tensor.shape().begin(), tensor.shape().end()},
                           0,
                           static_cast<std::int64_t>(tensor.size_bytes())});
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const TensorEntry& a, const TensorEntry& b) {
                         return size_bytes(a.dtype) > size_bytes(b.dtype);
                     });
    std::int64_t offset = 0;
    for (TensorEntry& entry : entries) {
        entry.begin += offset;
        entry.end += offset;
        offset = entry.end;
    }
    return entries;
}

}  // namespace

TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
    MemorySource source(bytes, name);
    return parse(source);
}

TensorFile read_safetensors(const std::filesystem::path& path) {
    const std::string name = path.string();
    std::error_code problem;
    const std::filesystem::file_status status = std::filesystem::status(path, problem);
    if (!std::filesystem::is_regular_file(status)) {
        refuse_file(name, problem ? problem.message() : "something that is not a file",
                    "a readable safetensors file");
    }
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, problem));
    FileHandle handle(problem ? nullptr : std::fopen(path.c_str(), "rb"));
    if (!handle) {
        refuse_file(name, problem ? problem.message() : describe_errno(errno),
                    "a readable safetensors file");
    }
    FileSource source(std::move(handle), size, name);
    return parse(source);
}

void write_safetensors(const std::filesystem::path& path, const TensorFile& file) {
    const std::string name = path.string();
    const SafetensorsHeader header{lay_out(file, name), file.metadata};
    const std::string json = format_header(header, name);
    const std::uint64_t header_bytes = json.size();

    PendingFile pending(path);
    pending.write(&header_bytes, sizeof header_bytes);
    pending.write(json.data(), json.size());
    for (const TensorEntry& entry : header.tensors) {
        const Tensor& tensor = file.tensors.at(entry.name);
        pending.write(tensor.view().data, tensor.size_bytes());
    }
    pending.commit();
}

}  // namespace sluice
