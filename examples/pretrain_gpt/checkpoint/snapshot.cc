#include "examples/pretrain_gpt/checkpoint/snapshot.h"

#include <ATen/ATen.h>

#include <utility>

namespace pretrain_gpt {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

Snapshot::Snapshot(std::vector<HeldPiece> pieces, bool keeps_copy)
    : pieces_(std::move(pieces)), keeps_copy_(keeps_copy) {
  std::size_t place = 0;
  for (const HeldPiece& piece : pieces_) {
    forms_.push_back(
        {piece_name(piece.place.name, piece.place.shape, piece.place.box), piece.place.dtype, piece.place.box.size});
    places_.push_back(place);
    place += (forms_.back().bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  copy_.resize(keeps_copy ? place : 0);
}

void Snapshot::take() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; keeps_copy_ && i < pieces_.size(); ++i) {
    const at::Tensor& view = pieces_[i].view;
    at::from_blob(copy_.data() + places_[i], view.sizes(), at::TensorOptions(view.scalar_type())).copy_(view);
  }
}

std::span<const std::byte> Snapshot::bytes(std::size_t index) {
  if (keeps_copy_) {
    return {copy_.data() + places_[index], forms_[index].bytes()};
  }
  current_ = pieces_[index].view.to(at::kCPU).contiguous();
  return {static_cast<const std::byte*>(current_.const_data_ptr()), current_.nbytes()};
}

}  // namespace pretrain_gpt
