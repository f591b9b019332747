#include "examples/pretrain_gpt/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/safetensors_header.h"
#include "examples/pretrain_gpt/checkpoint/sha256.h"
#include "examples/pretrain_gpt/checkpoint/strict_json.h"

namespace pretrain_gpt {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "pretrain_gpt checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr int kLevels = 6;  // Manifest, tensors, tensor, pieces, piece, start.

bool is_plain_name(const std::string& name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), is_plain);
}

bool is_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Reads one manifest.
class Reader {
 public:
  explicit Reader(const std::string& origin) : origin_(origin) {}

  Manifest read(const json& root) const {
    check_format(root);
    Manifest manifest;
    manifest.iteration = count(root, "iteration");
    manifest.consumed_samples = count(root, "consumed_samples");
    manifest.seed = count(root, "seed");
    manifest.model = settings(root, "model");
    manifest.data = settings(root, "data");
    manifest.layout = settings(root, "layout");
    manifest.files = files(list(root, "files"));
    for (const auto& [name, value] : object(root, "tensors").items()) {
      manifest.tensors.emplace(name, tensor(shown(name), value, manifest.files.size()));
    }
    return manifest;
  }

 private:
  [[noreturn]] void refuse(const std::string& rule) const { throw CheckpointError(origin_, rule); }

  std::int64_t count(const json& value, const std::string& key, const std::string& where = "the manifest") const {
    return as_count(member(value, key, where, origin_), where + " " + key, origin_);
  }

  std::string text(const json& value, const std::string& key, const std::string& where) const {
    return as_text(member(value, key, where, origin_), where + " " + key, origin_);
  }

  Shape counts(const json& value, const std::string& key, const std::string& where) const {
    return as_counts(member(value, key, where, origin_), where + " " + key, origin_);
  }

  const json& list(const json& value, const std::string& key, const std::string& where = "the manifest") const {
    const json& items = member(value, key, where, origin_);
    if (!items.is_array()) {
      refuse(fmt::format("{} {} must be a list, got {}", where, key, shown(items)));
    }
    return items;
  }

  const json& object(const json& value, const std::string& key) const {
    const json& items = member(value, key, "the manifest", origin_);
    if (!items.is_object()) {
      refuse(fmt::format("the manifest {} must be an object, got {}", key, shown(items)));
    }
    return items;
  }

  void check_format(const json& root) const {
    const std::string format = text(root, "format", "the manifest");
    if (format != kFormat) {
      refuse(fmt::format("the manifest format must be '{}', got {}", kFormat, shown(format)));
    }
    if (const std::int64_t version = count(root, "version"); version != kVersion) {
      refuse(fmt::format("the manifest version must be {}, got {}", kVersion, version));
    }
  }

  Settings settings(const json& root, const std::string& key) const {
    Settings settings;
    for (const auto& [name, value] : object(root, key).items()) {
      settings[name] = as_text(value, fmt::format("the manifest {} {}", key, shown(name)), origin_);
    }
    return settings;
  }

  std::vector<ManifestFile> files(const json& items) const {
    std::vector<ManifestFile> files;
    std::set<std::string> names;
    for (const json& item : items) {
      const std::string where = fmt::format("file {}", files.size());
      ManifestFile file{text(item, "name", where), static_cast<std::uint64_t>(count(item, "bytes", where)),
                        text(item, "sha256", where)};
      if (!is_plain_name(file.name) || !names.insert(file.name).second) {
        refuse(fmt::format("{} name must be a new name in the folder, got {}", where, shown(file.name)));
      }
      if (!is_hash(file.sha256)) {
        refuse(fmt::format("{} sha256 must be 64 lower-case hexadecimal digits, got {}", where, shown(file.sha256)));
      }
      files.push_back(std::move(file));
    }
    return files;
  }

  ManifestTensor tensor(const std::string& where, const json& value, std::size_t files) const {
    ManifestTensor tensor{text(value, "dtype", where), counts(value, "shape", where), {}};
    if (!dtype_bytes(tensor.dtype)) {
      refuse(fmt::format("{} must have a dtype such as F32, got {}", where, shown(tensor.dtype)));
    }
    std::vector<Box> boxes;
    for (const json& item : list(value, "pieces", where)) {
      ManifestPiece piece{static_cast<std::size_t>(count(item, "file", where)),
                          {counts(item, "start", where), counts(item, "size", where)}};
      if (piece.file >= files) {
        refuse(fmt::format("{} must be in a file below {}, got {}", where, files, piece.file));
      }
      boxes.push_back(piece.box);
      tensor.pieces.push_back(std::move(piece));
    }
    if (!tile(tensor.shape, std::move(boxes))) {
      refuse(fmt::format("{} must have every element in exactly one of its pieces, got {} that do not make it up",
                         where, tensor.pieces.size()));
    }
    return tensor;
  }

  const std::string& origin_;
};

}  // namespace

std::string print_manifest(const Manifest& manifest) {
  json root = {{"format", kFormat},
               {"version", kVersion},
               {"iteration", manifest.iteration},
               {"consumed_samples", manifest.consumed_samples},
               {"seed", manifest.seed},
               {"model", manifest.model},
               {"data", manifest.data},
               {"layout", manifest.layout},
               {"files", json::array()},
               {"tensors", json::object()}};
  for (const ManifestFile& file : manifest.files) {
    root["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    json pieces = json::array();
    for (const ManifestPiece& piece : tensor.pieces) {
      pieces.push_back({{"file", piece.file}, {"start", piece.box.start}, {"size", piece.box.size}});
    }
    root["tensors"][name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", std::move(pieces)}};
  }
  return root.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& origin) {
  return Reader(origin).read(parse_strict_json(text, origin, kLevels));
}

std::string manifest_hash_line(const std::string& manifest) {
  return fmt::format("{}  {}\n", sha256(manifest), kManifestName);
}

std::string piece_name(const std::string& tensor, const Shape& shape, const Box& box) {
  return box.size == shape ? tensor : tensor + print_box(box);
}

}  // namespace pretrain_gpt
