#include "examples/pretrain_gpt/checkpoint/fill_pieces.h"

#include <ATen/ATen.h>

#include <map>
#include <memory>

#include "examples/pretrain_gpt/checkpoint/safetensors_file.h"

namespace pretrain_gpt {
namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

at::Tensor narrowed(at::Tensor tensor, const Box& box, const Shape& origin) {
  for (std::size_t i = 0; i < box.start.size(); ++i) {
    tensor = tensor.narrow(static_cast<std::int64_t>(i), box.start[i] - origin[i], box.size[i]);
  }
  return tensor;
}

// One checkpoint, its files opened as they are needed.
class Source {
 public:
  Source(const std::filesystem::path& checkpoint, const Manifest& manifest)
      : checkpoint_(checkpoint), manifest_(manifest) {}

  void fill(const HeldPiece& held) {
    const ManifestTensor& tensor = manifest_.tensors.at(held.place.name);
    for (const ManifestPiece& piece : tensor.pieces) {
      if (const auto both = overlap(piece.box, held.place.box)) {
        const at::Tensor rows = read_rows(held, tensor, piece, *both);
        Shape origin = piece.box.start;
        if (!origin.empty()) {
          origin.front() = both->start.front();
        }
        narrowed(held.view, *both, held.place.box.start).copy_(narrowed(rows, *both, origin));
      }
    }
  }

 private:
  const SafetensorsFile& file(std::size_t index) {
    std::unique_ptr<SafetensorsFile>& file = files_[index];
    if (!file) {
      file = std::make_unique<SafetensorsFile>(checkpoint_ / manifest_.files.at(index).name);
    }
    return *file;
  }

  // Of the piece those rows that `both` is in, whole.
  at::Tensor read_rows(const HeldPiece& held, const ManifestTensor& tensor, const ManifestPiece& piece,
                       const Box& both) {
    const SafetensorsFile& from = file(piece.file);
    const SafetensorsEntry& entry =
        from.find({piece_name(held.place.name, tensor.shape, piece.box), tensor.dtype, piece.box.size});
    Shape sizes = piece.box.size;
    std::int64_t first_row = 0;
    if (!sizes.empty()) {
      sizes.front() = both.size.front();
      first_row = both.start.front() - piece.box.start.front();
    }
    const at::Tensor rows = at::empty(sizes, held.view.scalar_type());
    const std::int64_t row_bytes = sizes.empty() ? 0 : static_cast<std::int64_t>(rows.nbytes()) / sizes.front();
    from.read(entry, static_cast<std::uint64_t>(first_row * row_bytes), bytes_of(rows));
    return rows;
  }

  const std::filesystem::path& checkpoint_;
  const Manifest& manifest_;
  std::map<std::size_t, std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace

void fill_pieces(const std::filesystem::path& checkpoint, const Manifest& manifest,
                 const std::vector<HeldPiece>& pieces) {
  const at::NoGradGuard no_grad;
  Source source(checkpoint, manifest);
  for (const HeldPiece& piece : pieces) {
    source.fill(piece);
  }
}

}  // namespace pretrain_gpt
