#include "io/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "sluice/error.hpp"

namespace sluice {

namespace {

constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();
constexpr const char* kMetadataKey = "__metadata__";

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"F64", DType::kFloat64}, {"F32", DType::kFloat32}, {"BF16", DType::kBFloat16},
    {"F16", DType::kFloat16}, {"I64", DType::kInt64},   {"I32", DType::kInt32},
    {"BOOL", DType::kBool},
};

std::string_view format_name(DType dtype) {
    return std::find_if(std::begin(kDTypes), std::end(kDTypes),
                        [&](const auto& known) { return known.second == dtype; })
        ->first;
}

/// Receives the parser's events. The form of a header is fixed, so anything else is refused where
/// it stands: nesting stays at three levels and no document is ever built.
class HeaderEvents {
  public:
    explicit HeaderEvents(const std::string& file) : file_(file) {}

    SafetensorsHeader take() { return std::move(header_); }

    bool null() { refuse("null"); }
    bool boolean(bool value) { refuse(value ? "true" : "false"); }
    bool number_integer(std::int64_t value) { refuse(std::to_string(value)); }
    bool number_float(double /*value*/, const std::string& text) { refuse(text); }
    bool binary(nlohmann::json::binary_t& /*value*/) { refuse("binary"); }

    bool number_unsigned(std::uint64_t value) {
        if (where_ != Where::kList || value > kMaxInteger) refuse(std::to_string(value));
        const std::size_t most = field_ == Field::kShape ? kMaxRank : 2;
        if (list().size() == most) refuse(fmt::format("more than {} values", most));
        list().push_back(static_cast<std::int64_t>(value));
        return true;
    }

    bool string(std::string& value) {
        if (where_ == Where::kMetadata) {
            header_.metadata[key_] = std::move(value);
        } else if (where_ == Where::kTensor && field_ == Field::kDType) {
            set_dtype(value);
        } else {
            refuse(printable(value));
        }
        return true;
    }

    bool start_object(std::size_t /*size*/) {
        if (where_ == Where::kDocument) {
            where_ = Where::kFile;
        } else if (where_ == Where::kFile && name_ == kMetadataKey) {
            where_ = Where::kMetadata;
        } else if (where_ == Where::kFile) {
            where_ = Where::kTensor;
            seen_fields_ = 0;
            shape_.clear();
            offsets_.clear();
        } else {
            refuse("an object");
        }
        return true;
    }

    bool key(std::string& key) {
        if (where_ == Where::kTensor) {
            begin_field(key);
            return true;
        }
        const bool fresh =
            where_ == Where::kFile ? names_.insert(key).second : !header_.metadata.contains(key);
        if (!fresh) refuse_file(file_, "duplicate name " + printable(key), "names that are unique");
        (where_ == Where::kFile ? name_ : key_) = std::move(key);
        return true;
    }

    bool end_object() {
        if (where_ == Where::kTensor) end_tensor();
        where_ = where_ == Where::kFile ? Where::kDocument : Where::kFile;
        return true;
    }

    bool start_array(std::size_t /*size*/) {
        if (where_ != Where::kTensor || field_ == Field::kDType) refuse("a list");
        where_ = Where::kList;
        return true;
    }

    bool end_array() {
        if (field_ == Field::kOffsets && offsets_.size() != 2) {
            refuse(fmt::format("{} values", offsets_.size()));
        }
        where_ = Where::kTensor;
        return true;
    }

    bool parse_error(std::size_t position, const std::string& /*token*/,
                     const nlohmann::detail::exception& /*problem*/) {
        refuse_file(file_, fmt::format("a header that is not JSON at its byte {}", position),
                    "a JSON object");
    }

  private:
    enum class Where { kDocument, kFile, kMetadata, kTensor, kList };
    enum class Field { kDType, kShape, kOffsets };
    static constexpr std::pair<std::string_view, Field> kFields[] = {
        {"dtype", Field::kDType}, {"shape", Field::kShape}, {"data_offsets", Field::kOffsets}};

    [[noreturn]] void refuse(const std::string& value) const {
        switch (where_) {
            case Where::kDocument: refuse_file(file_, value + " as the header", "a JSON object");
            case Where::kFile:
                refuse_file(file_, fmt::format("{} for {}", value, printable(name_)),
                            "an object with dtype, shape and data_offsets per tensor");
            case Where::kMetadata:
                refuse_file(file_, fmt::format("{} for metadata {}", value, printable(key_)),
                            "strings as metadata");
            case Where::kTensor:
            case Where::kList: break;
        }
        constexpr const char* kAccepted[] = {"a string",
                                             "a list of at most 6 integers, 0 to 2^63 - 1",
                                             "a list of 2 integers, 0 to 2^63 - 1"};
        static_assert(kMaxRank == 6);
        const auto index = static_cast<std::size_t>(field_);
        refuse_file(
            file_,
            fmt::format("{} in {} of tensor {}", value, kFields[index].first, printable(name_)),
            kAccepted[index]);
    }

    void begin_field(const std::string& key) {
        for (const auto& [known, field] : kFields) {
            if (known != key) continue;
            field_ = field;
            const unsigned bit = 1U << static_cast<unsigned>(field);
            if ((seen_fields_ & bit) != 0) break;
            seen_fields_ |= bit;
            return;
        }
        refuse_file(file_, fmt::format("field {} of tensor {}", printable(key), printable(name_)),
                    "dtype, shape and data_offsets, each once");
    }

    void set_dtype(const std::string& name) {
        for (const auto& [known, dtype] : kDTypes) {
            if (known == name) {
                dtype_ = dtype;
                return;
            }
        }
        refuse_file(file_, fmt::format("dtype {} of tensor {}", printable(name), printable(name_)),
                    "F64, F32, BF16, F16, I64, I32, BOOL");
    }

    void end_tensor() {
        if (seen_fields_ != 0b111) {
            refuse_file(file_, fmt::format("an incomplete entry of tensor {}", printable(name_)),
                        "dtype, shape and data_offsets, each once");
        }
        header_.tensors.push_back({name_, dtype_, shape_, offsets_[0], offsets_[1]});
    }

    std::vector<std::int64_t>& list() { return field_ == Field::kShape ? shape_ : offsets_; }

    const std::string& file_;
    SafetensorsHeader header_;
    Where where_ = Where::kDocument;
    Field field_ = Field::kDType;
    unsigned seen_fields_ = 0;
    std::set<std::string> names_;
    std::string name_;  // of the tensor, or __metadata__
    std::string key_;   // inside __metadata__
    DType dtype_ = DType::kFloat32;
    std::vector<std::int64_t> shape_;
    std::vector<std::int64_t> offsets_;
};

void check_entry(const TensorEntry& entry, std::int64_t data_bytes, const std::string& file) {
    const std::string where =
        fmt::format("offsets [{}, {}] of tensor {}", entry.begin, entry.end, printable(entry.name));
    if (entry.begin > entry.end) refuse_file(file, where, "begin <= end");
    if (entry.end > data_bytes) {
        refuse_file(file, fmt::format("{} in {} bytes of data", where, data_bytes),
                    "offsets inside the data (a truncated file?)");
    }
    const std::string type =
        fmt::format("{} {}", format_name(entry.dtype), to_string(std::span(entry.shape)));
    const std::int64_t bytes = tensor_bytes(entry.dtype, entry.shape);
    if (bytes < 0) {
        refuse_file(file, fmt::format("tensor {}: {}", printable(entry.name), type),
                    "at most 2^63 - 1 bytes");
    }
    if (entry.end - entry.begin != bytes) {
        refuse_file(file,
                    fmt::format("{} bytes for tensor {}: {}", entry.end - entry.begin,
                                printable(entry.name), type),
                    fmt::format("{} bytes", bytes));
    }
}

void check_cover(const std::vector<TensorEntry>& tensors, std::int64_t data_bytes,
                 const std::string& file) {
    constexpr const char* kAccepted = "tensors that follow each other and fill the data";
    std::int64_t end = 0;
    for (const TensorEntry& entry : tensors) {
        if (entry.begin != end) {
            refuse_file(file,
                        fmt::format("{} before tensor {} (begins at {}, the one before ends at {})",
                                    entry.begin < end ? "an overlap" : "a gap",
                                    printable(entry.name), entry.begin, end),
                        kAccepted);
        }
        end = entry.end;
    }
    if (end != data_bytes) {
        refuse_file(file, fmt::format("{} bytes after the last tensor", data_bytes - end),
                    kAccepted);
    }
}

}  // namespace

void refuse_file(const std::string& file, std::string value, std::string accepted) {
    throw Error(ErrorCode::kFile, file, std::move(value), std::move(accepted));
}

std::string printable(std::string_view text) {
    constexpr std::size_t kLongest = 64;
    const bool cut = text.size() > kLongest;
    const std::string escaped = nlohmann::json(text.substr(0, kLongest))
                                    .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    return fmt::format("'{}{}'", std::string_view(escaped).substr(1, escaped.size() - 2),
                       cut ? "..." : "");
}

std::int64_t tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
    auto bytes = static_cast<std::int64_t>(size_bytes(dtype));
    bool empty = false;
    for (const std::int64_t extent : shape) {
        empty = empty || extent == 0;
        if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) return -1;
    }
    return empty ? 0 : bytes;
}

SafetensorsHeader parse_header(std::string_view json, std::int64_t data_bytes,
                               const std::string& file) {
    // The parser alone would skip a byte order mark or white space in front.
    if (json.empty() || json.front() != '{') {
        refuse_file(file, "a header that does not begin with '{'", "a JSON object");
    }
    // It would also take a NUL byte for the end of its input and never look behind it.
    if (const std::size_t nul = json.find('\0'); nul != std::string_view::npos) {
        refuse_file(file, fmt::format("a header with a NUL at its byte {}", nul + 1),
                    "a JSON object");
    }
    HeaderEvents events(file);
    nlohmann::json::sax_parse(json.begin(), json.end(), &events);
    SafetensorsHeader header = events.take();
    for (const TensorEntry& entry : header.tensors) check_entry(entry, data_bytes, file);
    std::sort(header.tensors.begin(), header.tensors.end(),
              [](const TensorEntry& a, const TensorEntry& b) {
                  return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
              });
    check_cover(header.tensors, data_bytes, file);
    return header;
}

std::string format_header(const SafetensorsHeader& header, const std::string& file) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    if (!header.metadata.empty()) json[kMetadataKey] = header.metadata;
    for (const TensorEntry& entry : header.tensors) {
        if (entry.name == kMetadataKey) {
            refuse_file(file, fmt::format("a tensor named {}", printable(entry.name)),
                        "other names");
        }
        json[entry.name] = {{"dtype", format_name(entry.dtype)},
                            {"shape", entry.shape},
                            {"data_offsets", {entry.begin, entry.end}}};
    }
    std::string text;
    try {
        text = json.dump();
    } catch (const nlohmann::json::type_error&) {
        refuse_file(file, "a name or metadata that is not UTF-8", "UTF-8 text");
    }
    text.resize((text.size() + 7) / 8 * 8, ' ');
    if (static_cast<std::int64_t>(text.size()) > kMaxHeaderBytes) {
        refuse_file(file, fmt::format("a header of {} bytes", text.size()),
                    fmt::format("at most {} bytes", kMaxHeaderBytes));
    }
    return text;
}

}  // namespace sluice
