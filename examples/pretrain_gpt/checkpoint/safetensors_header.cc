#include "examples/pretrain_gpt/checkpoint/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/strict_json.h"

namespace pretrain_gpt {
namespace {

using nlohmann::json;

constexpr int kLevels = 3;  // Header, tensor, list.
const std::string kMetadata = "__metadata__";

void check_bytes(const SafetensorsEntry& entry, const std::string& where, const std::string& origin) {
  const std::optional<std::int64_t> item = dtype_bytes(entry.dtype), count = count_elements(entry.shape);
  std::uint64_t bytes = 0;
  if (!item) {
    throw CheckpointError(origin, fmt::format("{} must have a dtype such as F32, got '{}'", where, entry.dtype));
  }
  if (!count || __builtin_mul_overflow(static_cast<std::uint64_t>(*count), *item, &bytes)) {
    throw CheckpointError(origin, fmt::format("{} must have a shape whose bytes can be counted, got [{}]", where,
                                              fmt::join(entry.shape, ", ")));
  }
  if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
    throw CheckpointError(origin, fmt::format("{} must take {} bytes as {} [{}], got bytes {} to {}", where, bytes,
                                              entry.dtype, fmt::join(entry.shape, ", "), entry.begin, entry.end));
  }
}

SafetensorsEntry read_entry(const std::string& name, const json& value, const std::string& origin) {
  const std::string where = shown(name);
  SafetensorsEntry entry;
  entry.dtype = as_text(member(value, "dtype", where, origin), where + " dtype", origin);
  entry.shape = as_counts(member(value, "shape", where, origin), where + " shape", origin);
  const Shape offsets = as_counts(member(value, "data_offsets", where, origin), where + " data_offsets", origin);
  if (offsets.size() != 2) {
    throw CheckpointError(origin, fmt::format("{} must have two data_offsets, got {}", where, offsets.size()));
  }
  entry.begin = static_cast<std::uint64_t>(offsets[0]);
  entry.end = static_cast<std::uint64_t>(offsets[1]);
  check_bytes(entry, where, origin);
  return entry;
}

void read_metadata(SafetensorsHeader& header, const json& value, const std::string& origin) {
  if (!value.is_object()) {
    throw CheckpointError(origin, fmt::format("{} must be an object, got {}", kMetadata, shown(value)));
  }
  for (const auto& [key, text] : value.items()) {
    header.metadata[key] = as_text(text, kMetadata, origin);
  }
}

// One behind the other, from the first byte of the data to the last.
void check_places(const SafetensorsHeader& header, std::uint64_t data_bytes, const std::string& origin) {
  std::vector<const SafetensorsEntry*> entries;
  for (const auto& [name, entry] : header.tensors) {
    entries.push_back(&entry);
  }
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t place = 0;
  for (const SafetensorsEntry* entry : entries) {
    if (entry->begin != place) {
      throw CheckpointError(origin, fmt::format("a tensor must begin at byte {} of the data, where the one before "
                                                "ends, got {}",
                                                place, entry->begin));
    }
    place = entry->end;
  }
  if (place != data_bytes) {
    throw CheckpointError(origin,
                          fmt::format("the data must be the {} bytes of its tensors, got {}", place, data_bytes));
  }
}

std::uint64_t read_length(std::span<const std::byte> start) {
  std::uint64_t length = 0;
  for (std::size_t i = kSafetensorsLengthBytes; i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(start[i]);
  }
  return length;
}

}  // namespace

std::optional<std::int64_t> dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, std::int64_t> bytes{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};
  const auto found = bytes.find(dtype);
  return found == bytes.end() ? std::nullopt : std::optional(found->second);
}

std::uint64_t safetensors_data_begin(std::span<const std::byte> start, std::uint64_t file_bytes,
                                     const std::string& origin) {
  if (file_bytes < kSafetensorsLengthBytes || start.size() < kSafetensorsLengthBytes) {
    throw CheckpointError(origin, fmt::format("must be a safetensors file, got {} bytes", file_bytes));
  }
  const std::uint64_t length = read_length(start);
  const std::uint64_t most = std::min(file_bytes - kSafetensorsLengthBytes, kMostSafetensorsHeaderBytes);
  if (length > most) {
    throw CheckpointError(origin, fmt::format("must have a header of at most {} bytes in a file of {}, got {}", most,
                                              file_bytes, length));
  }
  return kSafetensorsLengthBytes + length;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> start, std::uint64_t file_bytes,
                                    const std::string& origin) {
  SafetensorsHeader header;
  header.data_begin = safetensors_data_begin(start, file_bytes, origin);
  if (start.size() < header.data_begin) {
    throw CheckpointError(origin,
                          fmt::format("must have a header of {} bytes, got {}", header.data_begin, start.size()));
  }
  const auto text = start.subspan(kSafetensorsLengthBytes, header.data_begin - kSafetensorsLengthBytes);
  const json root = parse_strict_json({reinterpret_cast<const char*>(text.data()), text.size()}, origin, kLevels);
  if (!root.is_object()) {
    throw CheckpointError(origin, fmt::format("the header must be an object, got {}", shown(root)));
  }
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadata) {
      read_metadata(header, value, origin);
    } else {
      header.tensors.emplace(name, read_entry(name, value, origin));
    }
  }
  check_places(header, file_bytes - header.data_begin, origin);
  return header;
}

std::string print_safetensors(const SafetensorsHeader& header) {
  json root = json::object();
  if (!header.metadata.empty()) {
    root[kMetadata] = header.metadata;
  }
  for (const auto& [name, entry] : header.tensors) {
    root[name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = root.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (std::size_t i = 0; i < kSafetensorsLengthBytes; ++i) {
    length += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return length + text;
}

}  // namespace pretrain_gpt
