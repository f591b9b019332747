// The folder of checkpoints, on disk: what is found, refused, kept and removed.
#include "examples/pretrain_gpt/checkpoint/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/durable_file.h"
#include "examples/pretrain_gpt/checkpoint/safetensors_file.h"
#include "tests/pretrain_gpt/checkpoint/refusal.h"

namespace pretrain_gpt {
namespace {

namespace fs = std::filesystem;

// Two files of 40 elements.
void write_checkpoint(const fs::path& save, std::int64_t iteration) {
  const fs::path folder = checkpoint_path(save, iteration);
  fs::create_directories(folder);
  Manifest manifest;
  manifest.iteration = iteration;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string name = "rank_0000" + std::to_string(i) + ".safetensors", tensor = "w" + std::to_string(i);
    const std::string bytes(160, static_cast<char>('a' + i));
    const WrittenFile file = write_safetensors(folder / name, {{tensor, "F32", {40}}}, {},
                                               [&](std::size_t) { return std::as_bytes(std::span(bytes)); });
    manifest.files.push_back({name, file.bytes, file.sha256});
    manifest.tensors[tensor] = {"F32", {40}, {{i, whole_box({40})}}};
  }
  write_durably(folder / kManifestName, print_manifest(manifest));
  write_durably(folder / kManifestHashName, manifest_hash_line(print_manifest(manifest)));
}

// As find_checkpoint() looks at one, on one rank.
void check(const fs::path& folder) {
  for (const ManifestFile& file : read_manifest(folder).manifest.files) {
    check_hash(folder, file);
  }
}

TEST(CheckpointFolder, ListsFoldersOfTheRightNameAlone) {
  const Folder folder;
  EXPECT_TRUE(list_checkpoints(folder.path() / "none").empty());
  for (const char* name : {"iter_0000010", "iter_0000200", "iter_0000003.tmp", "iter_0000004.removed", "iter_12",
                           "iter_0000005.damaged", "iter_", "iter_-000001", "iter_0000000", "other", "iter_12345678"}) {
    fs::create_directory(folder.path() / name);
  }
  write_file(folder.path() / "iter_0000011", "a file");
  fs::create_directory_symlink(folder.path() / "other", folder.path() / "iter_0000012");
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<std::int64_t>{12345678, 200, 10}));
  EXPECT_EQ(checkpoint_path("a", 10), "a/iter_0000010");
  EXPECT_EQ(unfinished_path("a", 10), "a/iter_0000010.tmp");
}

TEST(CheckpointFolder, RefusesWhatIsMissingOrOfAnotherSize) {
  const Folder folder;
  write_checkpoint(folder.path(), 10);
  const fs::path one = checkpoint_path(folder.path(), 10);
  check(one);
  const auto in = [&](const char* name) { return (one / name).string(); };
  fs::rename(in("rank_00001.safetensors"), in("away"));
  EXPECT_EQ(refusal([&] { check(one); }),
            "[" + in("rank_00001.safetensors") + "] must be a readable file, got: No such file or directory");
  write_file(in("rank_00001.safetensors"), dualpipe::read_text(in("away")) + "x");
  const std::string size = std::to_string(fs::file_size(in("away")));
  EXPECT_EQ(refusal([&] { check(one); }), "[" + in("rank_00001.safetensors") + "] must have the " + size +
                                              " bytes of the manifest, got " +
                                              std::to_string(fs::file_size(in("away")) + 1));
  fs::remove(in("rank_00001.safetensors"));
  fs::create_symlink("away", in("rank_00001.safetensors"));
  EXPECT_EQ(refusal([&] { check(one); }),
            "[" + in("rank_00001.safetensors") + "] must be a readable file, got: a symbolic link");
  fs::remove(in("manifest.json"));
  EXPECT_EQ(refusal([&] { check(one); }),
            "[" + in("manifest.json") + "] must be a readable file, got: No such file or directory");
}

// What ranks compare before they talk of anything else.
TEST(CheckpointFolder, SaysWhatThereIsToGoOnFrom) {
  const Folder folder;
  EXPECT_EQ(describe_checkpoint(folder.path() / "none", {}), "none");
  EXPECT_EQ(describe_checkpoint(folder.path(), {}), "none");
  for (const std::int64_t iteration : {10, 20}) {
    write_checkpoint(folder.path(), iteration);
  }
  const auto hash = [&](std::int64_t iteration) {
    return dualpipe::read_text(checkpoint_path(folder.path(), iteration) / kManifestHashName).substr(0, 64);
  };
  ASSERT_NE(hash(10), hash(20));
  EXPECT_EQ(describe_checkpoint(folder.path(), {}), "iter_0000020 with manifest " + hash(20));
  EXPECT_EQ(describe_checkpoint(folder.path(), 10), "iter_0000010 with manifest " + hash(10));
  fs::remove(checkpoint_path(folder.path(), 20) / kManifestName);
  EXPECT_EQ(describe_checkpoint(folder.path(), {}), "iter_0000020 without a manifest");
  EXPECT_EQ(describe_checkpoint(folder.path(), 30), "iter_0000030 without a manifest");
  write_file(folder.path() / "file", "");
  EXPECT_EQ(refusal([&] { describe_checkpoint(folder.path() / "file", {}); }),
            "[" + (folder.path() / "file").string() + "] must be a readable folder, got: Not a directory");
}

// Every bit of every file counts.
TEST(CheckpointFolder, RefusesEveryBitFlipAndTruncation) {
  const Folder folder;
  write_checkpoint(folder.path(), 10);
  const fs::path one = checkpoint_path(folder.path(), 10);
  std::mt19937 random(3);
  int tried = 0;
  for (const char* name :
       {"rank_00000.safetensors", "rank_00001.safetensors", "manifest.json", "manifest.json.sha256"}) {
    const std::string good = dualpipe::read_text(one / name);
    for (int round = 0; round < 150; ++round, ++tried) {
      std::string bad = good;
      if (round % 3 == 0) {
        bad.resize(random() % good.size());
      } else {
        bad[random() % good.size()] ^= static_cast<char>(1 << random() % 8);
      }
      write_file(one / name, bad);
      const std::string message = refusal([&] { check(one); });
      ASSERT_TRUE(message.starts_with("[" + one.string() + "/")) << name << " " << round << " " << message;
      ASSERT_TRUE(is_damage([&] { check(one); })) << message;
    }
    write_file(one / name, good);
  }
  check(one);
  EXPECT_EQ(tried, 600);
}

TEST(CheckpointFolder, KeepsTheNewestCompleteOnes) {
  const Folder folder;
  for (const std::int64_t iteration : {10, 20, 30, 40, 50}) {
    write_checkpoint(folder.path(), iteration);
  }
  fs::remove(checkpoint_path(folder.path(), 40) / "rank_00000.safetensors");
  remove_old_checkpoints(folder.path(), 2);
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<std::int64_t>{50, 40, 30}));
  check(checkpoint_path(folder.path(), 30));
}

TEST(CheckpointFolder, RemovesLeftoversAndSetsAside) {
  const Folder folder;
  for (const char* name : {"iter_0000010.tmp", "iter_0000011.removed", "iter_0000012.damaged", "mine.tmp"}) {
    fs::create_directory(folder.path() / name);
    write_file(folder.path() / name / "file", "x");
  }
  write_checkpoint(folder.path(), 12);
  remove_leftovers(folder.path());
  EXPECT_FALSE(fs::exists(folder.path() / "iter_0000010.tmp"));
  EXPECT_FALSE(fs::exists(folder.path() / "iter_0000011.removed"));
  EXPECT_TRUE(fs::exists(folder.path() / "mine.tmp"));
  set_aside(folder.path(), 12);
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
  EXPECT_TRUE(fs::exists(folder.path() / "iter_0000012.damaged" / "manifest.json"));
}

// Each folder that lists something new has to be synced.
TEST(DurableFile, MakesAFolderWithAllThatItIsIn) {
  const Folder folder;
  const fs::path root = folder.path();
  std::error_code error;
  EXPECT_EQ(make_folders(root / "a/b/c", error), (std::vector<fs::path>{root, root / "a", root / "a/b"}));
  EXPECT_TRUE(fs::is_directory(root / "a/b/c"));
  EXPECT_EQ(make_folders(root / "a/b/c", error), std::vector<fs::path>{});
  EXPECT_EQ(make_folders(root / "a/./d/", error), std::vector<fs::path>{root / "a"});
  EXPECT_TRUE(fs::is_directory(root / "a/d"));
  make_folders_durably(root / "e/f", error);
  EXPECT_TRUE(fs::is_directory(root / "e/f"));
  EXPECT_FALSE(error);
  write_file(root / "file", "");
  EXPECT_EQ(make_folders(root / "file/a", error), std::vector<fs::path>{});
  EXPECT_TRUE(error);
}

TEST(DurableFile, NeverWritesOverAnother) {
  const Folder folder;
  const auto in = [&](const char* name) { return (folder.path() / name).string(); };
  const std::string hint = "; free some space, or choose another folder, for example save: output/checkpoints";
  write_file(in("file"), "old");
  EXPECT_EQ(refusal([&] { write_durably(in("file"), "new"); }),
            "[" + in("file") + "] must be written, got: File exists" + hint);
  EXPECT_EQ(dualpipe::read_text(in("file")), "old");
  write_durably(in("other"), "new");
  EXPECT_EQ(refusal([&] { rename_durably(in("other"), in("file")); }),
            "[" + in("file") + "] must be written, got: something of this name is there" + hint);
  rename_durably(in("other"), in("new"));
  EXPECT_EQ(dualpipe::read_text(in("new")), "new");
}

}  // namespace
}  // namespace pretrain_gpt
