// examples/pretrain_gpt/collective.h
//
// Waiting for what ranks do together, and sums over the ranks of a group: of gradients, losses, norms and counts.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace pretrain_gpt {

// Throws PeerLost with what the work failed with, or "<what> was aborted": an aborted work counts as done, and says so
// by returning false alone. `peer`: the rank of the run that it is a message from or to.
void wait_for(c10d::Work& work, const char* what, std::optional<int> peer = {});

// What `post` gives. Throws PeerLost where a link is found broken as early as here; a mistake of the call stays what it
// is.
c10::intrusive_ptr<c10d::Work> posted(const char* what, const std::function<c10::intrusive_ptr<c10d::Work>()>& post,
                                      std::optional<int> peer = {});

// Without the stack trace that errors of c10 carry.
std::string text_of(const std::exception& error);

// Keeps its tensor alive until wait() returns it.
struct PendingSum {
  at::Tensor tensor;
  c10::intrusive_ptr<c10d::Work> work;

  at::Tensor wait();
};

// Of `tensor`, in place.
PendingSum post_sum(c10d::ProcessGroup& group, at::Tensor tensor);

// `tensor` itself where the group is null or of one rank.
at::Tensor sum_over(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Tensor tensor);

}  // namespace pretrain_gpt
