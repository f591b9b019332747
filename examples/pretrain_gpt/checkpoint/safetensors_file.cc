#include "examples/pretrain_gpt/checkpoint/safetensors_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/durable_file.h"
#include "examples/pretrain_gpt/checkpoint/sha256.h"

namespace pretrain_gpt {
namespace {

std::vector<std::size_t> aligned_order(const std::vector<StoredTensor>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const StoredTensor &first = tensors[a], &second = tensors[b];
    return std::tuple(-*dtype_bytes(first.dtype), first.name) < std::tuple(-*dtype_bytes(second.dtype), second.name);
  });
  return order;
}

SafetensorsHeader read_header(const InputFile& file) {
  std::vector<std::byte> start(std::min<std::uint64_t>(kSafetensorsLengthBytes, file.size()));
  file.read(0, start);
  start.resize(safetensors_data_begin(start, file.size(), file.path().string()));
  file.read(0, start);
  return parse_safetensors(start, file.size(), file.path().string());
}

std::string describe(const std::string& dtype, const Shape& shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

}  // namespace

std::uint64_t StoredTensor::bytes() const {
  return static_cast<std::uint64_t>(count_elements(shape).value() * dtype_bytes(dtype).value());
}

WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata, const BytesOf& bytes_of) {
  SafetensorsHeader header;
  header.metadata = metadata;
  const std::vector<std::size_t> order = aligned_order(tensors);
  std::uint64_t place = 0;
  for (const std::size_t index : order) {
    const StoredTensor& tensor = tensors[index];
    header.tensors[tensor.name] = {tensor.dtype, tensor.shape, place, place + tensor.bytes()};
    place += tensor.bytes();
  }
  const std::string start = print_safetensors(header);
  DurableFile file(path);
  Sha256 hash;
  const auto add = [&](std::span<const std::byte> bytes) {
    hash.add(bytes);
    file.write(bytes);
  };
  add(std::as_bytes(std::span(start)));
  for (const std::size_t index : order) {
    add(bytes_of(index));
  }
  file.finish();
  return {start.size() + place, hash.finish()};
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path), header_(read_header(file_)) {}

const SafetensorsEntry& SafetensorsFile::find(const StoredTensor& form) const {
  const auto found = header_.tensors.find(form.name);
  if (found == header_.tensors.end()) {
    throw CheckpointError(path().string(), fmt::format("must have {}, got no such tensor", form.name));
  }
  const SafetensorsEntry& entry = found->second;
  if (entry.dtype != form.dtype || entry.shape != form.shape) {
    throw CheckpointError(path().string(),
                          fmt::format("{} must be {}, got {}", form.name, describe(form.dtype, form.shape),
                                      describe(entry.dtype, entry.shape)));
  }
  return entry;
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::uint64_t from, std::span<std::byte> into) const {
  file_.read(header_.data_begin + entry.begin + from, into);
}

}  // namespace pretrain_gpt
