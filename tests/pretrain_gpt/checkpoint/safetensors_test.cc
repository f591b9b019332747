// Safetensors files, most of them made by somebody who means harm.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>

#include "examples/pretrain_gpt/checkpoint/safetensors_file.h"
#include "examples/pretrain_gpt/checkpoint/sha256.h"
#include "tests/pretrain_gpt/checkpoint/refusal.h"

namespace pretrain_gpt {
namespace {

std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  return file + header + std::string(data_bytes, 'x');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), file.size(), "a.safetensors");
}

TEST(SafetensorsHeader, IsReadAsItWasPrinted) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  header.tensors = {{"a", {"F32", {2, 3}, 8, 32}}, {"b\n\"", {"I64", {}, 0, 8}}, {"none", {"BF16", {0, 4}, 32, 32}}};
  const std::string start = print_safetensors(header);
  EXPECT_EQ(start.size() % 8, 0);
  const SafetensorsHeader again = parse(start + std::string(32, 'x'));
  EXPECT_EQ(again.data_begin, start.size());
  EXPECT_EQ(again.metadata, header.metadata);
  ASSERT_EQ(again.tensors.size(), 3);
  EXPECT_EQ(again.tensors.at("a").shape, (Shape{2, 3}));
  EXPECT_EQ(again.tensors.at("a").begin, 8);
  EXPECT_EQ(again.tensors.at("none").end, 32);
  EXPECT_EQ(again.tensors.at("b\n\"").dtype, "I64");
}

TEST(SafetensorsHeader, IsRefusedWhereAnythingIsWrong) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const struct {
    std::string file, message;
  } rows[] = {
      {"", "must be a safetensors file, got 0 bytes"},
      {"1234567", "must be a safetensors file, got 7 bytes"},
      {std::string(8, '\xff') + "{}",
       "must have a header of at most 2 bytes in a file of 10, got 18446744073709551615"},
      {file_of("{}", 0).substr(0, 9), "must have a header of at most 1 bytes in a file of 9, got 2"},
      {file_of("[]", 0), "the header must be an object, got a list of 0"},
      {file_of("{" + a + "}", 7), "the data must be the 8 bytes of its tensors, got 7"},
      {file_of("{" + a + "}", 9), "the data must be the 8 bytes of its tensors, got 9"},
      {file_of("{" + a + "," + a + "}", 8), "a key must be there once, got \"a\" twice"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
       "a tensor must begin at byte 0 of the data, where the one before ends, got 4"},
      {file_of("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
       "a tensor must begin at byte 8 of the data, where the one before ends, got 4"},
      {file_of(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8),
       "\"a\" must have a dtype such as F32, got 'F33'"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
       "\"a\" must take 8 bytes as F32 [2], got bytes 8 to 0"},
      {file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
       "\"a\" must take 12 bytes as F32 [3], got bytes 0 to 8"},
      {file_of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
       "\"a\" shape must be an integer of at least 0, got -2"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8),
       "\"a\" shape must be an integer of at least 0, got 2.0"},
      {file_of(R"({"a":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]}})", 8),
       "\"a\" must have a shape whose bytes can be counted, got [9223372036854775807, 4]"},
      {file_of(R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0),
       "\"a\" must have a shape whose bytes can be counted, got [4611686018427387904]"},
      {file_of(R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}})", 8),
       "\"a\" shape must be an integer of at least 0, got 1e+20"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8),
       "\"a\" must have two data_offsets, got 1"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "\"a\" must have data_offsets, got none"},
      {file_of(R"({"a":{"dtype":"F32","shape":{},"data_offsets":[0,8]}})", 8),
       "\"a\" shape must be a list of integers, got an object"},
      {file_of(R"({"a":[1]})", 0), "\"a\" must be an object, got a list of 1"},
      {file_of(R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", 8),
       "must be JSON of at most 3 levels, got more"},
      {file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__ must be text, got 1"},
      {file_of(R"({"__metadata__":[]})", 0), "__metadata__ must be an object, got a list of 0"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(refusal([&] { parse(row.file); }), "[a.safetensors] " + row.message) << row.file;
  }
  EXPECT_EQ(refusal([&] { parse(file_of("{\"a\xff\":1}", 0)); }).find("[a.safetensors] must be JSON, got: "), 0);
  EXPECT_EQ(refusal([&] { parse(file_of(std::string(100'000, '['), 0)); }),
            "[a.safetensors] must be JSON of at most 3 levels, got more");
}

// Nothing but a refusal, or a header that the file justifies.
TEST(SafetensorsHeader, SurvivesChangedBytes) {
  SafetensorsHeader header;
  for (int i = 0; i < 4; ++i) {
    const auto place = static_cast<std::uint64_t>(i) * 8;
    header.tensors["tensor" + std::to_string(i)] = {"F32", {1, 2}, place, place + 8};
  }
  const std::string good = print_safetensors(header) + std::string(32, 'x');
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string file = good;
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
      file[random() % file.size()] = static_cast<char>(random());
    }
    file.resize(random() % 4 == 0 ? random() % file.size() : file.size());
    try {
      for (const auto& [name, entry] : parse(file).tensors) {
        ASSERT_LE(entry.begin, entry.end);
        ASSERT_LE(entry.end, 32);
      }
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
}

TEST(SafetensorsFile, GivesBackWhatWasWritten) {
  const Folder folder;
  const std::vector<StoredTensor> tensors{{"bytes", "U8", {3}}, {"step", "I64", {}}, {"row", "F32", {2}}};
  const std::vector<std::string> values{"abc", "12345678", "ABCDEFGH"};
  const auto path = folder.path() / "a.safetensors";
  const WrittenFile written = write_safetensors(
      path, tensors, {{"format", "pt"}}, [&](std::size_t index) { return std::as_bytes(std::span(values[index])); });
  const std::string file = dualpipe::read_text(path);
  EXPECT_EQ(written.bytes, file.size());
  EXPECT_EQ(written.sha256, sha256(file));
  EXPECT_EQ(sha256_of_file(InputFile(path)), written.sha256);
  EXPECT_EQ(file.substr(file.size() - 19), "12345678ABCDEFGHabc");  // Wide dtypes first.
  const SafetensorsFile reader(path);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::string bytes(values[i].size() - 1, ' ');
    reader.read(reader.find(tensors[i]), 1, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, values[i].substr(1));
  }
  EXPECT_EQ(refusal([&] {
              reader.find({"none", "U8", {3}});
            }),
            "[" + path.string() + "] must have none, got no such tensor");
  EXPECT_EQ(refusal([&] {
              reader.find({"row", "F32", {3}});
            }),
            "[" + path.string() + "] row must be F32 [3], got F32 [2]");
  EXPECT_EQ(refusal([&] {
              reader.find({"row", "BF16", {2}});
            }),
            "[" + path.string() + "] row must be BF16 [2], got F32 [2]");
}

// An error of the disk, which this file of Linux gives at address 0, says nothing of the bytes.
TEST(InputFile, IsNotDamagedWhereItCannotBeRead) {
  std::string bytes(4, ' ');
  const auto read = [&](const std::filesystem::path& path) {
    return [&bytes, path] { InputFile(path).read(0, std::as_writable_bytes(std::span(bytes))); };
  };
  EXPECT_EQ(refusal(read("/proc/self/mem")), "[/proc/self/mem] must be a readable file, got: Input/output error");
  EXPECT_FALSE(is_damage(read("/proc/self/mem")));
  EXPECT_EQ(refusal(read("/proc/self/mem/x")), "[/proc/self/mem/x] must be a readable file, got: Not a directory");
  EXPECT_FALSE(is_damage(read("/proc/self/mem/x")));
  EXPECT_TRUE(is_damage(read("/proc/self/none")));
}

TEST(InputFile, IsAPlainFileOrRefused) {
  const Folder folder;
  const auto in = [&](const std::string& name) { return (folder.path() / name).string(); };
  write_file(in("file"), "secret");
  std::filesystem::create_symlink(in("file"), in("link"));
  std::filesystem::create_directory(in("folder"));
  EXPECT_EQ(refusal([&] { InputFile file(in("none")); }),
            "[" + in("none") + "] must be a readable file, got: No such file or directory");
  EXPECT_EQ(refusal([&] { InputFile file(in("link")); }),
            "[" + in("link") + "] must be a readable file, got: a symbolic link");
  EXPECT_EQ(refusal([&] { InputFile file(in("folder")); }),
            "[" + in("folder") + "] must be a readable file, got: no plain file");
  EXPECT_EQ(refusal([&] {
              std::string bytes(7, ' ');
              InputFile(in("file")).read(0, std::as_writable_bytes(std::span(bytes)));
            }),
            "[" + in("file") + "] must be a readable file, got: its end at byte 6");
  EXPECT_EQ(refusal([&] { read_text_file(in("file"), 5); }),
            "[" + in("file") + "] must be a readable file, got: 6 bytes, more than 5");
}

}  // namespace
}  // namespace pretrain_gpt
