// What a checkpoint says of itself: what passes is printed, and read again as it was.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/manifest.h"
#include "examples/pretrain_gpt/checkpoint/safetensors_header.h"
#include "plugin/schedule/error.h"
#include "tests/fuzz/targets.h"

namespace dualpipe::fuzz {

using pretrain_gpt::CheckpointError;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// In two steps, as files are read: nothing is read, or allocated, that the first does not allow.
pretrain_gpt::SafetensorsHeader read_header(std::span<const std::byte> file) {
  const auto start = file.first(std::min(file.size(), pretrain_gpt::kSafetensorsLengthBytes));
  const std::uint64_t data_begin = pretrain_gpt::safetensors_data_begin(start, file.size(), "fuzz.safetensors");
  check(data_begin <= file.size(), "a header is in its file");
  return pretrain_gpt::parse_safetensors(file.first(data_begin), file.size(), "fuzz.safetensors");
}

}  // namespace

void read_manifest(std::string_view bytes) {
  try {
    const pretrain_gpt::Manifest manifest = pretrain_gpt::parse_manifest(std::string(bytes), "fuzz.json");
    for (const pretrain_gpt::ManifestFile& file : manifest.files) {
      check(file.name.find('/') == std::string::npos && file.name.front() != '.', "a file is in its folder");
    }
    const std::string text = pretrain_gpt::print_manifest(manifest);
    check(pretrain_gpt::print_manifest(pretrain_gpt::parse_manifest(text, "fuzz.json")) == text,
          "what is printed parses back");
  } catch (const CheckpointError&) {
  }
}

void read_safetensors_header(std::string_view bytes) {
  try {
    const pretrain_gpt::SafetensorsHeader header = read_header(bytes_of(bytes));
    const std::uint64_t data_bytes = bytes.size() - header.data_begin;
    for (const auto& [name, entry] : header.tensors) {
      check(entry.begin <= entry.end && entry.end <= data_bytes, "a tensor is in its file");
    }
    const std::string text = pretrain_gpt::print_safetensors(header);
    const auto again = pretrain_gpt::parse_safetensors(bytes_of(text), text.size() + data_bytes, "fuzz.safetensors");
    check(pretrain_gpt::print_safetensors(again) == text, "what is printed parses back");
  } catch (const CheckpointError&) {
  }
}

}  // namespace dualpipe::fuzz
