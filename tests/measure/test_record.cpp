// Records as JSON: what is written is read back, what is not a record is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/raw_file.hpp"
#include "measure/records.hpp"
#include "sluice/record.hpp"
#include "support/refusal.hpp"

namespace sluice {
namespace {

using nlohmann::json;
using test::refusal;
using test::sample_record;

json parsed(const Record& record) { return json::parse(to_json(std::vector{record})); }

std::vector<Record> parse(const json& array) { return parse_records(array.dump(), "r.json"); }

TEST(Record, EveryMemberSurvivesTheRoundTrip) {
    const std::string text = to_json(std::vector{sample_record()});
    const std::vector<Record> back = parse_records(text, "r.json");
    ASSERT_EQ(back.size(), 1U);
    EXPECT_EQ(to_json(back), text);
    const Record& r = back[0];
    EXPECT_EQ(r.op, "gla");
    EXPECT_EQ(r.phase, Phase::kDecode);
    EXPECT_EQ(r.dims.HV, 8);
    EXPECT_EQ(r.dtype, DType::kBFloat16);
    EXPECT_EQ(r.seed, 18'446'744'073'709'551'615U);
    EXPECT_DOUBLE_EQ(r.measured_us, 125.5);
    EXPECT_EQ(r.device.name, "a \"machine\"");
    EXPECT_EQ(r.command, "sluice bench --op gla -T 1");
}

TEST(Record, NoMemberIsLeftAtItsDefault) {
    // The sample differs from a default record in each member, so that the round trip proves each.
    const json sample = parsed(sample_record()), plain = parsed(Record{});
    for (const auto& [name, value] : sample[0].items()) {
        if (name == "schema") continue;
        EXPECT_NE(value, plain[0][name]) << name;
    }
    for (const char* inner : {"device", "dims"}) {
        for (const auto& [name, value] : sample[0][inner].items()) {
            EXPECT_NE(value, plain[0][inner][name]) << inner << "." << name;
        }
    }
}

TEST(Record, RatesFollowFromTheMeasurement) {
    Record r;
    r.dims = {.B = 2, .T = 500, .H = 1, .HV = 1, .K = 1, .V = 1, .N = 2};
    r.measured_us = 1000;
    r.flops = 3e9;
    r.bytes_read = 3e6;
    r.bytes_written = 0.5e6;
    r.device.matmul_flops_per_s = 6e12;
    r.device.copy_bytes_per_s = 8e9;
    r.floor_us = 500;
    r.io_bytes = 100;
    r.peak_memory_bytes = 150;
    EXPECT_DOUBLE_EQ(r.tokens_per_s(), 1e6);
    EXPECT_DOUBLE_EQ(r.gflops_per_s(), 3000);
    EXPECT_DOUBLE_EQ(r.gbytes_per_s(), 3.5);
    EXPECT_DOUBLE_EQ(r.fraction_of_floor(), 0.5);
    EXPECT_DOUBLE_EQ(r.fraction_of_matmul(), 0.5);
    EXPECT_DOUBLE_EQ(r.peak_memory_ratio(), 1.5);
    EXPECT_FALSE(r.memory_bound());  // 438 us of bytes, 500 us of FLOPs
    r.bytes_read = 4e6;
    EXPECT_TRUE(r.memory_bound());
    EXPECT_EQ(parsed(r)[0]["bound"], "memory");
    EXPECT_DOUBLE_EQ(parsed(r)[0]["tokens_per_s"], 1e6);
}

TEST(Record, RowThatDidNotRunHasNoRates) {
    Record r;
    r.skipped = "too large";
    r.flops = 1e9;
    EXPECT_FALSE(r.ran());
    EXPECT_EQ(r.gflops_per_s(), 0);
    EXPECT_EQ(r.fraction_of_floor(), 0);
    EXPECT_EQ(parse(parsed(r))[0].skipped, "too large");
}

TEST(Record, OtherSchemaIsRefused) {
    json array = parsed(sample_record());
    array[0]["schema"] = Record::kSchema + 1;
    EXPECT_EQ(refusal([&] { (void)parse(array); }), "file | r.json: record 0: schema | 3 | 2");
    array[0].erase("schema");
    EXPECT_EQ(refusal([&] { (void)parse(array); }),
              "file | r.json: record 0: schema | nothing | a member of every record");
}

TEST(Record, MissingSurplusAndWrongMembersAreRefused) {
    const json good = parsed(sample_record());
    json bad = json::array({good[0], good[0]});
    bad[1].erase("measured_us");
    EXPECT_EQ(refusal([&] { (void)parse(bad); }),
              "file | r.json: record 1: measured_us | nothing | a member of every record");
    bad = good;
    bad[0]["latency"] = 3;
    EXPECT_EQ(refusal([&] { (void)parse(bad); }),
              "file | r.json: record 0: latency | 3 | members of a record");
    bad = good;
    bad[0]["measured_us"] = "fast";
    EXPECT_EQ(refusal([&] { (void)parse(bad); }),
              "file | r.json: record 0: measured_us | \"fast\" | a number");
    bad = good;
    bad[0]["samples"] = 1.5;
    EXPECT_EQ(refusal([&] { (void)parse(bad); }),
              "file | r.json: record 0: samples | 1.5 | an integer");
    bad = good;
    bad[0]["seed"] = -1;
    EXPECT_EQ(refusal([&] { (void)parse(bad); }),
              "file | r.json: record 0: seed | -1 | an integer");
    bad = good;
    bad[0]["phase"] = "training";
    EXPECT_EQ(refusal([&] { (void)parse(bad); }),
              "file | r.json: record 0: phase | 'training' | prefill or decode");
    bad = good;
    bad[0]["dims"]["G"] = 1;
    EXPECT_EQ(refusal([&] { (void)parse(bad); }),
              "file | r.json: record 0: dims.G | 1 | members of a record");
    bad = good;
    bad[0]["device"] = "gpu";
    EXPECT_EQ(refusal([&] { (void)parse(bad); }),
              "file | r.json: record 0: device | string | an object");
}

TEST(Record, NumbersThatCannotBeAreRefused) {
    Record measured = sample_record();
    measured.skipped.clear();
    const json good = parsed(measured);
    ASSERT_EQ(parse(good).size(), 1U);
    const auto refused = [&](const char* member, const json& value) {
        json bad = good;
        bad[0][json::json_pointer(member)] = value;
        const std::string text = refusal([&] { (void)parse(bad); });
        EXPECT_TRUE(text.starts_with("file | r.json: record 0: ")) << member << ": " << text;
        return text;
    };
    EXPECT_EQ(refused("/measured_us", 0),
              "file | r.json: record 0: measured_us | 0 | 1e-09 to 1e+15, for a row that was run");
    EXPECT_EQ(refused("/dims/T", 0),
              "file | r.json: record 0: dims.T | 0 | >= 1, for a row that was run");
    EXPECT_EQ(refused("/threads", -3), "file | r.json: record 0: threads | -3 | 0 to 1000000");
    EXPECT_EQ(refused("/dtype", "int99"),
              "file | r.json: record 0: dtype | 'int99' | float32, bfloat16, float16, float64");
    for (const char* time : {"/measured_us", "/floor_us", "/h200_floor_us"}) {
        for (const json& value : {json(-1), json(0), json(1e300), json(5e-324), json(nullptr)}) {
            refused(time, value);
        }
    }
    for (const char* number : {"/p10_us", "/flops", "/device/copy_bytes_per_s", "/relative_mad"}) {
        for (const json& value : {json(-1e-3), json(1e31), json("nan")}) refused(number, value);
    }
    for (const char* count :
         {"/threads", "/samples", "/dims/B", "/io_bytes", "/device/multiprocessors"}) {
        for (const json& value :
             {json(-1), json(18'446'744'073'709'551'615U), json(1LL << 62), json(2.5)}) {
            refused(count, value);
        }
    }
    for (const char* type : {"/dtype", "/gate_dtype", "/state_dtype"}) refused(type, "int32");
    // Numbers past double do not parse at all.
    std::string text = good.dump();
    text.replace(text.find("125.5"), 5, "1e999");
    EXPECT_TRUE(refusal([&] { (void)parse_records(text, "r.json"); }).starts_with("file | r.json"));
}

TEST(Record, TextThatIsNoArrayIsRefused) {
    EXPECT_EQ(refusal([] { (void)parse_records("[1]", "r.json"); }),
              "file | r.json: record 0 | number | an object");
    EXPECT_EQ(refusal([] { (void)parse_records("{", "r.json"); }),
              "file | r.json | not JSON | a JSON array of records, as `sluice bench --output` "
              "writes it");
    EXPECT_EQ(refusal([] { (void)parse_records("{}", "r.json"); }),
              "file | r.json | no array | a JSON array of records, as `sluice bench --output` "
              "writes it");
    EXPECT_TRUE(parse_records("[]", "r.json").empty());
}

TEST(RecordFile, AppearsWholeOrNotAtAll) {
    const test::ScratchDirectory directory;
    const auto path = directory / "records.json";
    write_records(path, std::vector{sample_record(), sample_record()});
    EXPECT_EQ(read_records(path).size(), 2U);
    // Only the file itself is left, no temporary beside it.
    const auto entries = std::filesystem::directory_iterator(path.parent_path());
    EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
    // Neither is a device replaced.
    EXPECT_EQ(refusal([&] { write_records("/dev/null", std::vector{sample_record()}); }),
              "file | /dev/null | something that is not a file | a file, new or to be replaced");
    EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
    // A link stays one.
    const auto link = directory / "link.json";
    std::filesystem::create_symlink(path, link);
    write_records(link, std::vector{sample_record()});
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_EQ(read_records(path).size(), 1U);
    // A path that cannot be written leaves nothing behind and says which it was.
    const auto nowhere = directory / "no" / "such" / "folder.json";
    EXPECT_EQ(
        refusal([&] { write_records(nowhere, std::vector{sample_record()}); }),
        "file | " + nowhere.string() + " | No such file or directory | a path that can be written");
    EXPECT_EQ(
        refusal([&] { (void)read_records(nowhere); }),
        "file | " + nowhere.string() + " | No such file or directory | a file that can be read");
}

}  // namespace
}  // namespace sluice
