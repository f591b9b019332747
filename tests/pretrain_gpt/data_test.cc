#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>

#include "examples/pretrain_gpt/data/gpt_samples.h"
#include "examples/pretrain_gpt/data/indexed_dataset.h"
#include "examples/pretrain_gpt/data/indexed_writer.h"
#include "examples/pretrain_gpt/data/prepare_data.h"
#include "examples/pretrain_gpt/data/split.h"
#include "examples/pretrain_gpt/error.h"
#include "tests/support/temporary_folder.h"

namespace pretrain_gpt {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class DataTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.file(name); }

  void write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  std::string read(const std::string& name) const { return dualpipe::read_text(path(name)); }

  template <typename Action>
  std::string refusal(Action action) const {
    try {
      action();
    } catch (const UserError& error) {
      std::string message = error.what();
      for (std::size_t at; (at = message.find(folder_.path() + "/")) != std::string::npos;) {
        message.erase(at, folder_.path().size() + 1);
      }
      return message;
    }
    return "accepted";
  }

  dualpipe::TemporaryFolder folder_;
};

template <typename T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  return bytes;
}

// By hand, as the format says: one header, lengths, offsets, document boundaries.
std::string index_by_hand(std::uint8_t type, std::initializer_list<std::int32_t> lengths,
                          std::initializer_list<std::int64_t> offsets, std::initializer_list<std::int64_t> documents) {
  return std::string("MMIDIDX\0\0", 9) + bytes_of<std::uint64_t>({1}) + bytes_of<std::uint8_t>({type}) +
         bytes_of<std::uint64_t>({lengths.size()}) + bytes_of<std::uint64_t>({documents.size()}) + bytes_of(lengths) +
         bytes_of(offsets) + bytes_of(documents);
}

std::vector<std::int64_t> tokens_of(const IndexedDataset& dataset, std::int64_t position, std::size_t count) {
  std::vector<std::int64_t> tokens(count);
  dataset.read(position, tokens);
  return tokens;
}

TEST_F(DataTest, ReadsAnIndexMadeByHand) {
  write("a.idx", index_by_hand(8, {2, 0, 3}, {0, 4, 6}, {0, 1, 3}));  // uint16; bytes 4 and 5 belong to no sequence.
  write("a.bin", bytes_of<std::uint16_t>({10, 65535, 99, 30, 40, 50}));
  const IndexedDataset dataset(path("a"));
  EXPECT_EQ(dataset.num_tokens(), 5);
  EXPECT_EQ(dataset.num_sequences(), 3);
  EXPECT_EQ(dataset.num_documents(), 2);
  EXPECT_THAT(tokens_of(dataset, 0, 5), ElementsAre(10, 65535, 30, 40, 50));
  EXPECT_THAT(tokens_of(dataset, 3, 2), ElementsAre(40, 50));
}

TEST_F(DataTest, ReadsEveryIntegerType) {
  write("a.idx", index_by_hand(4, {2}, {0}, {0, 1}));
  write("a.bin", bytes_of<std::int32_t>({70000, 1}));
  EXPECT_THAT(tokens_of(IndexedDataset(path("a")), 0, 2), ElementsAre(70000, 1));
  write("b.idx", index_by_hand(5, {1}, {0}, {0, 1}));
  write("b.bin", bytes_of<std::int64_t>({1LL << 40}));
  EXPECT_THAT(tokens_of(IndexedDataset(path("b")), 0, 1), ElementsAre(1LL << 40));
  write("c.idx", index_by_hand(2, {1}, {0}, {0, 1}));
  write("c.bin", bytes_of<std::int8_t>({-1}));
  EXPECT_THAT(tokens_of(IndexedDataset(path("c")), 0, 1), ElementsAre(-1));
}

TEST_F(DataTest, WritesTheBytesOfTheFormat) {
  IndexedWriter writer(path("sub/a"));
  writer.add_document(std::vector<std::uint8_t>{'h', 'i', 0});
  writer.add_document(std::vector<std::uint8_t>{'x', 0});
  writer.finish();
  EXPECT_EQ(read("sub/a.bin"), std::string("hi\0x\0", 5));
  EXPECT_EQ(read("sub/a.idx"), index_by_hand(1, {3, 2}, {0, 3}, {0, 1, 2}));
}

TEST_F(DataTest, RefusesFilesThatAreMissingOrCutShort) {
  EXPECT_EQ(refusal([&] { IndexedDataset dataset(path("none")); }),
            "[none.idx] must be a readable file, got: No such file or directory; make one with `pretrain_gpt "
            "prepare-data`");
  write("a.idx", index_by_hand(1, {3, 2}, {0, 3}, {0, 1, 2}));
  write("a.bin", "abcd");
  EXPECT_EQ(refusal([&] { IndexedDataset dataset(path("a")); }),
            "[a.bin] must hold 5 bytes as a.idx says, got a file of 4 bytes; make the data again with `pretrain_gpt "
            "prepare-data`");
  write("a.bin", "abcde");
  write("a.idx", index_by_hand(1, {3, 2}, {0, 3}, {0, 1, 2}).substr(0, 70));
  EXPECT_EQ(
      refusal([&] { IndexedDataset dataset(path("a")); }),
      "[a.idx] must hold 82 bytes for 2 sequences and 3 document boundaries, got a file of 70 bytes; make the data "
      "again with `pretrain_gpt prepare-data`");
  write("a.idx", "MMID");
  EXPECT_EQ(refusal([&] { IndexedDataset dataset(path("a")); }),
            "[a.idx] must hold a header of 34 bytes, got a file of 4 bytes; make the data again with `pretrain_gpt "
            "prepare-data`");
  write("a.idx", std::string(60, 'x'));
  EXPECT_EQ(refusal([&] { IndexedDataset dataset(path("a")); }),
            "[a.idx] must start with MMIDIDX and version 1, got something else; make the data again with `pretrain_gpt "
            "prepare-data`");
  write("a.idx", index_by_hand(7, {1}, {0}, {0, 1}));
  EXPECT_EQ(refusal([&] { IndexedDataset dataset(path("a")); }),
            "[a.idx] must hold integer tokens (type code 1, 2, 3, 4, 5 or 8), got code 7; make the data again with "
            "`pretrain_gpt prepare-data`");
}

TEST_F(DataTest, PreparesFilesInOrderAndEndsEachWithAZero) {
  write("src/b.py", "B");
  write("src/a/c.py", "C\n");
  write("src/a/skipped.txt", "no");
  write("src/empty.py", "");
  write("first", "1");
  const PreparedData data = prepare_data({{path("first"), path("src")}, path("out"), {".py"}, std::nullopt});
  EXPECT_EQ(data.documents, 3);
  EXPECT_EQ(data.tokens, 7);
  EXPECT_EQ(read("out.bin"), std::string("1\0C\n\0B\0", 7));
}

TEST_F(DataTest, StopsBeforeTheFileThatExceedsTheBound) {
  write("src/a", "12");
  write("src/b", "34");
  EXPECT_EQ(prepare_data({{path("src")}, path("out"), {}, 5}).tokens, 3);
}

TEST_F(DataTest, RefusesInputsThatGiveNothing) {
  EXPECT_EQ(refusal([&] {
              prepare_data({{path("none")}, path("out"), {}, {}});
            }),
            "[none] --input must name files or folders that exist; for example --input README.md");
  write("src/a.txt", "12");
  EXPECT_EQ(refusal([&] {
              prepare_data({{path("src")}, path("out"), {".py"}, {}});
            }),
            "[--input] must hold at least one file that is not empty and ends in .py, got none; for example --input "
            "README.md");
  EXPECT_FALSE(fs::exists(path("out.idx")));
  EXPECT_EQ(refusal([&] {
              prepare_data({{path("src")}, path("src/a.txt/out"), {}, {}});
            }),
            "[src/a.txt/out.bin.part] --output must be a prefix of files that can be written; for example data/text");
}

class SamplesTest : public DataTest {
 protected:
  // 41 tokens 0..40: ten samples of four tokens and a label.
  GptSamples samples(std::uint64_t seed, std::int64_t first = 0, std::int64_t count = 10) {
    std::vector<std::uint8_t> tokens(41);
    std::iota(tokens.begin(), tokens.end(), std::uint8_t{0});
    IndexedWriter writer(path("s"));
    writer.add_document(tokens);
    writer.finish();
    return {std::make_shared<const IndexedDataset>(path("s")), 4, first, count, seed};
  }

  static std::vector<std::int64_t> starts(GptSamples& samples, std::int64_t from, std::int64_t count) {
    std::vector<std::int64_t> starts, tokens(5);
    for (std::int64_t n = from; n < from + count; ++n) {
      samples.read(n, tokens);
      starts.push_back(tokens[0]);
    }
    return starts;
  }
};

TEST_F(SamplesTest, EachPassHoldsEverySampleOnceInAnotherOrder) {
  GptSamples all = samples(7);
  const std::vector<std::int64_t> first = starts(all, 0, 10), second = starts(all, 10, 10);
  EXPECT_EQ(std::set<std::int64_t>(first.begin(), first.end()),
            (std::set<std::int64_t>{0, 4, 8, 12, 16, 20, 24, 28, 32, 36}));
  EXPECT_THAT(second, testing::UnorderedElementsAreArray(first));
  EXPECT_NE(first, second);
}

TEST_F(SamplesTest, TheOrderDependsOnTheSeedAlone) {
  GptSamples one = samples(7), same = samples(7), other = samples(8);
  const std::vector<std::int64_t> backwards = starts(same, 10, 10);  // Another pass first.
  EXPECT_EQ(starts(one, 0, 10), starts(same, 0, 10));
  EXPECT_EQ(starts(one, 10, 10), backwards);
  EXPECT_NE(starts(one, 0, 10), starts(other, 0, 10));
}

TEST_F(SamplesTest, ASampleHasTheLabelOfItsLastToken) {
  GptSamples last = samples(7, 9, 1);
  std::vector<std::int64_t> tokens(5);
  last.read(0, tokens);
  EXPECT_THAT(tokens, ElementsAre(36, 37, 38, 39, 40));
}

TEST_F(SamplesTest, CountsWholeSamples) {
  samples(7);
  const IndexedDataset dataset(path("s"));
  EXPECT_EQ(GptSamples::samples_of(dataset, 4), 10);
  EXPECT_EQ(GptSamples::samples_of(dataset, 40), 1);
  EXPECT_EQ(GptSamples::samples_of(dataset, 41), 0);
}

TEST(Split, DividesByWeight) {
  const Split split = parse_split("969, 30, 1", "x");
  EXPECT_EQ(split.training_samples(1000), 969);
  EXPECT_EQ(split.validation_samples(1000), 30);
  EXPECT_EQ(parse_split("1", "x").training_samples(5), 5);
  EXPECT_EQ(parse_split("1", "x").validation_samples(5), 0);
}

TEST(Split, RefusesWhatIsNoListOfWeights) {
  for (const char* text : {"", "a", "1,", "0,1", "-1", "1,2,3,4", "1,inf"}) {
    EXPECT_THROW(parse_split(text, "x"), UserError) << text;
  }
}

}  // namespace
}  // namespace pretrain_gpt
