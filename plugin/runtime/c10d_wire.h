// plugin/runtime/c10d_wire.h
//
// What C10dTransport starts its operations on: one Gloo backend, where tags tell messages apart, or two-rank groups,
// one per link, that run their operations in order (NCCL). A wire starts; it never waits.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <vector>

#include "plugin/runtime/message.h"
#include "plugin/runtime/nccl_groups.h"

namespace dualpipe {

struct Pending {
  MessageName name;
  c10::intrusive_ptr<c10d::Work> work;
};

class C10dWire {
 public:
  virtual ~C10dWire() = default;
  // Tensors without elements are left out.
  virtual std::vector<Pending> start(const MessageName& name, const TensorList& tensors) = 0;
  // Every rank's `mine` into every rank's `all`, by rank.
  virtual std::vector<Pending> gather(const at::Tensor& mine, const TensorList& all) = 0;
  virtual std::vector<Pending> broadcast(const at::Tensor& tensor, int root) = 0;
  // Ends what is under way, as far as that takes more than aborting the work that is being waited for.
  virtual void abort() = 0;
  virtual at::Device device() const = 0;
};

std::unique_ptr<C10dWire> make_gloo_wire(c10::intrusive_ptr<c10d::Backend> backend);

// `backend` serves the collectives over all ranks.
std::unique_ptr<C10dWire> make_edge_wire(c10::intrusive_ptr<c10d::Backend> backend, std::vector<EdgeGroup> groups,
                                         at::Device device);

}  // namespace dualpipe
