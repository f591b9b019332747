#include "plugin/runtime/message.h"

#include <sstream>

#include "plugin/runtime/dtype_name.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

bool may_be_sent(const at::Tensor& tensor) { return tensor.defined() && tensor.is_contiguous(); }

}  // namespace

std::string MessageName::to_string() const {
  std::ostringstream text;
  if (!peer) {
    text << "rank " << rank << ", collective";
    return text.str();
  }
  text << "rank " << rank << (direction == Direction::kSend ? ", send " : ", receive ") << number
       << (direction == Direction::kSend ? " to rank " : " from rank ") << *peer
       << (channel == kCollectiveChannel ? " (collective)" : " (channel " + std::to_string(channel) + ")");
  return text.str();
}

std::string describe_tensors(const TensorList& tensors) {
  if (tensors.empty()) {
    return "nothing";
  }
  std::ostringstream text;
  const char* separator = "";
  for (const at::Tensor& tensor : tensors) {
    text << separator << dtype_name(tensor.scalar_type()) << tensor.sizes();
    separator = ", ";
  }
  return text.str();
}

at::Tensor sum_in_rank_order(const TensorList& by_rank) {
  const at::ScalarType type = by_rank.at(0).scalar_type();
  const bool narrow = type == at::kHalf || type == at::kBFloat16;
  at::Tensor sum = narrow ? by_rank[0].to(at::kFloat) : by_rank[0].clone();
  for (std::size_t i = 1; i < by_rank.size(); ++i) {
    sum += by_rank[i];
  }
  return sum.to(type);
}

void check_message(const MessageName& name, int size, const TensorList& tensors) {
  bool right = name.peer && *name.peer >= 0 && *name.peer < size && *name.peer != name.rank && name.channel >= 0 &&
               name.channel < kCollectiveChannel;
  for (const at::Tensor& tensor : tensors) {
    right = right && may_be_sent(tensor);
  }
  if (!right) {
    check(false, name.to_string() + ": the peer is another rank, the tensors are defined and contiguous");
  }
}

}  // namespace dualpipe
