#include "examples/pretrain_gpt/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <string>

#include "examples/pretrain_gpt/checkpoint/match.h"
#include "tests/pretrain_gpt/checkpoint/refusal.h"

namespace pretrain_gpt {
namespace {

const std::string kHash(64, 'a');

Manifest small_manifest() {
  Manifest manifest;
  manifest.iteration = 20;
  manifest.consumed_samples = 320;
  manifest.seed = 7;
  manifest.model = {{"num_layers", "4"}};
  manifest.data = {{"split", "99,1"}};
  manifest.layout = {{"pipeline_schedule", "zb1p"},
                     {"tensor_model_parallel_size", "1"},
                     {"pipeline_model_parallel_size", "2"},
                     {"data_parallel_size", "1"},
                     {"expert_model_parallel_size", "1"}};
  manifest.files = {{"rank_00000.safetensors", 100, kHash}, {"rank_00001.safetensors", 200, kHash}};
  manifest.tensors["w"] = {"F32", {2, 4}, {{0, {{0, 0}, {2, 1}}}, {1, {{0, 1}, {2, 3}}}}};
  return manifest;
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = print_manifest(small_manifest());
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return text.replace(place, from.size(), to);
}

TEST(Manifest, IsReadAsItWasPrinted) {
  const std::string text = print_manifest(small_manifest());
  const Manifest again = parse_manifest(text, "manifest.json");
  EXPECT_EQ(print_manifest(again), text);
  EXPECT_EQ(again.tensors.at("w").pieces.at(1).box, (Box{{0, 1}, {2, 3}}));
  EXPECT_EQ(manifest_hash_line("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  manifest.json\n");
  EXPECT_EQ(piece_name("w", {2, 4}, {{0, 0}, {2, 4}}), "w");
  EXPECT_EQ(piece_name("w", {2, 4}, {{0, 1}, {2, 3}}), "w[0:2,1:4]");
}

TEST(Manifest, IsRefusedWhereAnythingIsWrong) {
  const struct {
    std::string from, to, message;
  } rows[] = {
      {"pretrain_gpt checkpoint", "another", "the manifest format must be 'pretrain_gpt checkpoint', got \"another\""},
      {"\"version\": 1", "\"version\": 2", "the manifest version must be 1, got 2"},
      {"\"iteration\": 20", "\"iteration\": -20", "the manifest iteration must be an integer of at least 0, got -20"},
      {"\"seed\": 7", "\"seed\": \"7\"", "the manifest seed must be an integer of at least 0, got \"7\""},
      {"\"seed\"", "\"sead\"", "the manifest must have seed, got none"},
      {"\"split\": \"99,1\"", "\"split\": 99", "the manifest data \"split\" must be text, got 99"},
      {"rank_00001", "../rank_00001",
       "file 1 name must be a new name in the folder, got \"../rank_00001.safetensors\""},
      {"rank_00001", "/etc/passwd", "file 1 name must be a new name in the folder, got \"/etc/passwd.safetensors\""},
      {"rank_00001.safetensors", "..", "file 1 name must be a new name in the folder, got \"..\""},
      {"rank_00001.safetensors", "", "file 1 name must be a new name in the folder, got \"\""},
      {"rank_00001", "rank_00000", "file 1 name must be a new name in the folder, got \"rank_00000.safetensors\""},
      {"aaaa\"", "aaaA\"",
       "file 0 sha256 must be 64 lower-case hexadecimal digits, got \"" + std::string(59, 'a') + "..."},
      {"\"file\": 1", "\"file\": 2", "\"w\" must be in a file below 2, got 2"},
      {"\"F32\"", "\"F32 \"", "\"w\" must have a dtype such as F32, got \"F32 \""},
      {"\"files\": [", "\"files\": {}, \"more\": [", "the manifest files must be a list, got an object"},
      {"\"tensors\": {", "\"tensors\": [], \"more\": {", "the manifest tensors must be an object, got a list of 0"},
      {"\"seed\": 7", "\"seed\": 7, \"seed\": 8", "a key must be there once, got \"seed\" twice"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(refusal([&] { parse_manifest(changed(row.from, row.to), "m"); }), "[m] " + row.message);
  }
  Manifest manifest = small_manifest();
  manifest.tensors["w"].pieces.pop_back();
  EXPECT_EQ(refusal([&] { parse_manifest(print_manifest(manifest), "m"); }),
            "[m] \"w\" must have every element in exactly one of its pieces, got 1 that do not make it up");
}

TEST(Match, NamesTheFirstDifference) {
  const Manifest manifest = small_manifest();
  EXPECT_EQ(refusal([&] {
              match_model(manifest, {{"num_layers", "8"}}, "m");
            }),
            "[m] num_layers must be what this run has = 8, got 4; for example num_layers: 4");
  EXPECT_EQ(refusal([&] {
              match_model(manifest, {{"vocab_size", "256"}}, "m");
            }),
            "[m] vocab_size must be what this run has = 256, got nothing; for example vocab_size: nothing");
  EXPECT_EQ(refusal([&] {
              match_data(manifest, {{"split", "9,1"}}, 7, "m");
            }),
            "[m] split must be what this run has = 9,1, got 99,1; for example finetune: true, which begins with the "
            "data anew");
  EXPECT_EQ(refusal([&] { match_data(manifest, manifest.data, 8, "m"); }),
            "[m] seed must be what this run has = 8, got 7; for example seed: 7, or finetune: true, which begins with "
            "the data anew");
  const std::string under = "a checkpoint of zb1p with tensor 1, pipeline 2, data 1, expert 1";
  EXPECT_EQ(refusal([&] {
              match_tensors(manifest, {{"v", "F32", {2, 4}, {}, "", 0}}, "m");
            }),
            "[m] v must be there as F32 [2, 4], got no such tensor in " + under);
  EXPECT_EQ(refusal([&] {
              match_tensors(manifest, {{"w", "F32", {4, 2}, {}, "", 0}}, "m");
            }),
            "[m] w must be F32 [4, 2], got F32 [2, 4] in " + under);
  EXPECT_EQ(refusal([&] {
              match_tensors(manifest, {{"w", "F64", {2, 4}, {}, "", 0}}, "m");
            }),
            "[m] w must be F64 [2, 4], got F32 [2, 4] in " + under);
  EXPECT_EQ(refusal([&] { match_names(manifest, {"v"}, "m"); }),
            "[m] must have no tensor but those of this model, got w as F32 [2, 4] in " + under);
  match_tensors(manifest, {{"w", "F32", {2, 4}, {}, "", 0}}, "m");
  match_names(manifest, {"v", "w"}, "m");
}

}  // namespace
}  // namespace pretrain_gpt
