#include "sluice/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.hpp"
#include "sluice/error.hpp"

namespace sluice {

namespace {

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

using Json = nlohmann::ordered_json;

// One list of members for both directions. `f(name, member)`.

template <class D, class F>
void visit_device(D& device, F&& f) {
    f("name", device.name);
    f("source", device.source);
    f("copy_bytes_per_s", device.copy_bytes_per_s);
    f("matmul_flops_per_s", device.matmul_flops_per_s);
    f("multiprocessors", device.multiprocessors);
    f("cache_bytes", device.cache_bytes);
    f("shared_memory_bytes", device.shared_memory_bytes);
}

template <class D, class F>
void visit_dims(D& dims, F&& f) {
    f("B", dims.B);
    f("T", dims.T);
    f("H", dims.H);
    f("HV", dims.HV);
    f("K", dims.K);
    f("V", dims.V);
    f("N", dims.N);
}

template <class R, class F>
void visit_record(R& record, F&& f) {
    f("version", record.version);
    f("commit", record.commit);
    f("date", record.date);
    f("command", record.command);
    f("device", record.device);
    f("clock_mhz", record.clock_mhz);
    f("backend", record.backend);
    f("kernel", record.kernel);
    f("precision", record.precision);
    f("threads", record.threads);
    f("plan_hash", record.plan_hash);
    f("notice", record.notice);
    f("op", record.op);
    f("model", record.model);
    f("phase", record.phase);
    f("dims", record.dims);
    f("context", record.context);
    f("dtype", record.dtype);
    f("gate_dtype", record.gate_dtype);
    f("state_dtype", record.state_dtype);
    f("gates", record.gates);
    f("seed", record.seed);
    f("flops", record.flops);
    f("bytes_read", record.bytes_read);
    f("bytes_written", record.bytes_written);
    f("skipped", record.skipped);
    f("cache", record.cache);
    f("samples", record.samples);
    f("measured_us", record.measured_us);
    f("p10_us", record.p10_us);
    f("p90_us", record.p90_us);
    f("relative_mad", record.relative_mad);
    f("host_us", record.host_us);
    f("io_bytes", record.io_bytes);
    f("peak_memory_bytes", record.peak_memory_bytes);
    f("peak_memory_method", record.peak_memory_method);
    f("predicted_us", record.predicted_us);
    f("floor_us", record.floor_us);
    f("h200_floor_us", record.h200_floor_us);
}

template <class F>
void visit_derived(const Record& record, F&& f) {
    f("tokens_per_s", record.tokens_per_s());
    f("gflops_per_s", record.gflops_per_s());
    f("gbytes_per_s", record.gbytes_per_s());
    f("fraction_of_floor", record.fraction_of_floor());
    f("fraction_of_matmul", record.fraction_of_matmul());
    f("peak_memory_ratio", record.peak_memory_ratio());
    f("bound", std::string(record.memory_bound() ? "memory" : "compute"));
}

class Writer {
  public:
    template <class T>
    void operator()(const char* name, const T& member) {
        object_[name] = member;
    }
    void operator()(const char* name, DType member) { object_[name] = to_string(member); }
    void operator()(const char* name, Phase member) { object_[name] = to_string(member); }
    void operator()(const char* name, const DeviceSpec& member) {
        Writer inner;
        visit_device(member, inner);
        object_[name] = std::move(inner.object_);
    }
    void operator()(const char* name, const Dims& member) {
        Writer inner;
        visit_dims(member, inner);
        object_[name] = std::move(inner.object_);
    }
    Json take() { return std::move(object_); }

  private:
    Json object_ = Json::object();
};

class Reader {
  public:
    Reader(const Json& object, std::string source, std::string path)
        : object_(object), source_(std::move(source)), path_(std::move(path)) {
        if (!object.is_object()) {
            const std::string name = path_.substr(0, path_.find_last_not_of(".: ") + 1);
            refuse(name, object.type_name(), "an object");
        }
    }

    void operator()(const char* name, std::string& member) {
        const Json& value = find(name);
        if (!value.is_string()) refuse(path_ + name, value.dump(), "a string");
        member = value.get<std::string>();
    }
    void operator()(const char* name, double& member) {
        const Json& value = find(name);
        if (!value.is_number()) refuse(path_ + name, value.dump(), "a number");
        member = value.get<double>();
        if (!(member >= 0 && member <= kMaxNumber)) {
            refuse(path_ + name, value.dump(), fmt::format("a number from 0 to {:g}", kMaxNumber));
        }
    }
    void operator()(const char* name, std::uint64_t& member) {
        const Json& value = find(name);
        if (!value.is_number_unsigned()) refuse(path_ + name, value.dump(), "an integer");
        member = value.get<std::uint64_t>();
    }
    void operator()(const char* name, std::int64_t& member) { member = integer(name, kMaxInteger); }
    void operator()(const char* name, int& member) {
        member = static_cast<int>(integer(name, kMaxCount));
    }
    void operator()(const char* name, DType& member) {
        constexpr const char* kAccepted = "float32, bfloat16, float16, float64";
        std::string text;
        (*this)(name, text);
        try {
            member = parse_dtype(text);
        } catch (const Error&) {
            refuse(path_ + name, "'" + text + "'", kAccepted);
        }
        if (!is_floating(member)) refuse(path_ + name, "'" + text + "'", kAccepted);
    }
    void operator()(const char* name, Phase& member) {
        std::string text;
        (*this)(name, text);
        if (text == to_string(Phase::kPrefill)) {
            member = Phase::kPrefill;
        } else if (text == to_string(Phase::kDecode)) {
            member = Phase::kDecode;
        } else {
            refuse(path_ + name, "'" + text + "'", "prefill or decode");
        }
    }
    void operator()(const char* name, DeviceSpec& member) {
        Reader inner(find(name), source_, path_ + name + ".");
        visit_device(member, inner);
        inner.refuse_surplus();
    }
    void operator()(const char* name, Dims& member) {
        Reader inner(find(name), source_, path_ + name + ".");
        // Products of two stay within int64.
        visit_dims(member, [&](const char* dim, std::int64_t& extent) {
            extent = inner.integer(dim, kMaxExtent);
        });
        inner.refuse_surplus();
    }
    void ignore(const char* name) { known_.insert(name); }
    void refuse_surplus() const {
        for (const auto& item : object_.items()) {
            if (!known_.contains(item.key())) {
                refuse(path_ + item.key(), item.value().dump(), "members of a record");
            }
        }
    }
    const Json& find(const char* name) {
        known_.insert(name);
        const auto it = object_.find(name);
        if (it == object_.end()) refuse(path_ + name, "nothing", "a member of every record");
        return *it;
    }
    [[noreturn]] void refuse(const std::string& member, const std::string& value,
                             const std::string& accepted) const {
        throw Error(ErrorCode::kFile, source_ + ": " + member, value, accepted);
    }

  private:
    // A record's numbers are times, rates, counts and sizes: none is negative, none is larger.
    static constexpr double kMaxNumber = 1e30;
    static constexpr std::int64_t kMaxInteger = std::int64_t{1} << 53;
    static constexpr std::int64_t kMaxExtent = std::int64_t{1} << 31;
    static constexpr std::int64_t kMaxCount = 1'000'000;  // threads, cores, samples

    std::int64_t integer(const char* name, std::int64_t limit) {
        const Json& value = find(name);
        if (!value.is_number_integer()) refuse(path_ + name, value.dump(), "an integer");
        const bool fits = value.is_number_unsigned() &&
                          value.get<std::uint64_t>() <= static_cast<std::uint64_t>(limit);
        if (!fits) refuse(path_ + name, value.dump(), fmt::format("0 to {}", limit));
        return value.get<std::int64_t>();
    }

    const Json& object_;
    std::string source_;
    std::string path_;
    std::set<std::string> known_;
};

/// A row that was run has a time, a floor and a shape: everything derived divides by them.
void check_measured(const Record& record, const Reader& reader, const std::string& path) {
    constexpr double kShortest_us = 1e-9, kLongest_us = 1e15;
    const auto check_time = [&](const char* name, double us) {
        if (us >= kShortest_us && us <= kLongest_us) return;
        reader.refuse(
            path + name, fmt::format("{}", us),
            fmt::format("{:g} to {:g}, for a row that was run", kShortest_us, kLongest_us));
    };
    check_time("measured_us", record.measured_us);
    check_time("floor_us", record.floor_us);
    check_time("h200_floor_us", record.h200_floor_us);
    const auto check_count = [&](const std::string& name, std::int64_t value) {
        if (value < 1) {
            reader.refuse(path + name, std::to_string(value), ">= 1, for a row that was run");
        }
    };
    check_count("samples", record.samples);
    check_count("threads", record.threads);
    visit_dims(record.dims, [&](const char* name, std::int64_t extent) {
        check_count(std::string("dims.") + name, extent);
    });
}

Record parse_record(const Json& object, const std::string& source, const std::string& path) {
    Reader reader(object, source, path);
    const Json& schema = reader.find("schema");
    if (schema != Record::kSchema) {
        reader.refuse(path + "schema", schema.dump(), std::to_string(Record::kSchema));
    }
    Record record;
    visit_record(record, reader);
    visit_derived(record, [&](const char* name, const auto&) { reader.ignore(name); });
    reader.refuse_surplus();
    if (record.ran()) check_measured(record, reader, path);
    return record;
}

}  // namespace

double Record::tokens_per_s() const noexcept {
    return ratio(1e6 * static_cast<double>(dims.B * dims.T), measured_us);
}
double Record::gflops_per_s() const noexcept { return ratio(1e-3 * flops, measured_us); }
double Record::gbytes_per_s() const noexcept { return ratio(1e-3 * bytes(), measured_us); }
double Record::fraction_of_floor() const noexcept { return ratio(floor_us, measured_us); }
double Record::fraction_of_matmul() const noexcept {
    return ratio(1e9 * gflops_per_s(), device.matmul_flops_per_s);
}
double Record::peak_memory_ratio() const noexcept {
    return ratio(static_cast<double>(peak_memory_bytes), static_cast<double>(io_bytes));
}
bool Record::memory_bound() const noexcept {
    return ratio(bytes(), device.copy_bytes_per_s) >= ratio(flops, device.matmul_flops_per_s);
}

std::string to_json(std::span<const Record> records) {
    Json array = Json::array();
    for (const Record& record : records) {
        Writer writer;
        writer("schema", Record::kSchema);
        visit_record(record, writer);
        visit_derived(record, writer);
        array.push_back(writer.take());
    }
    return array.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<Record> parse_records(std::string_view json, const std::string& source) {
    const Json array = Json::parse(json, nullptr, false);
    if (!array.is_array()) {
        throw Error(ErrorCode::kFile, source, array.is_discarded() ? "not JSON" : "no array",
                    "a JSON array of records, as `sluice bench --output` writes it");
    }
    std::vector<Record> records;
    for (std::size_t i = 0; i < array.size(); ++i) {
        records.push_back(parse_record(array[i], source, fmt::format("record {}: ", i)));
    }
    return records;
}

std::vector<Record> read_records(const std::filesystem::path& path) {
    return parse_records(read_text(path), path.string());
}

void write_records(const std::filesystem::path& path, std::span<const Record> records) {
    write_text(path, to_json(records));
}

}  // namespace sluice
