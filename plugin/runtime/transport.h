// plugin/runtime/transport.h
//
// Moves lists of tensors between the ranks of one pipeline. The only classes that know how are its implementations:
// loopback (threads of one process) and c10d.
//
// A message is a list of defined, contiguous tensors; sender and receiver agree beforehand on count, dtypes and shapes
// (plugin/runtime/mailbox.h), and on the order of messages per directed edge. Empty tensors (no elements) are not
// moved.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "plugin/runtime/collectives.h"
#include "plugin/runtime/failure.h"
#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

// A wait that ended without its message: timeout, lost peer, abort(). Often the echo of another rank's failure.
class TransportError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The link to a peer broke: the peer is to blame, as far as this rank can know. Thrown where nobody recorded a failure.
class PeerError : public TransportError {
 public:
  PeerError(int peer, const std::string& message) : TransportError(message), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// A message on its way. It keeps its tensors alive until it is done; dropping one that is not done is not allowed.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Returns once the message has arrived (receive) or its tensors may be reused (send). Throws TransportError on
  // timeout, a lost peer or abort().
  virtual void wait() = 0;
};

class Transport : public Collectives {
 public:
  // Start a send or post a receive; neither ever blocks on the peer. `channel` keeps kinds of traffic apart that have
  // their own order on the same directed edge: 0 for the pipeline's messages, 1 for gradients between mirrors, 2 for
  // everything else. Within (peer, direction, channel) messages match in the order of posting.
  virtual std::unique_ptr<Transfer> send(int peer, int channel, const TensorList& tensors) = 0;
  virtual std::unique_ptr<Transfer> receive(int peer, int channel, const TensorList& into) = 0;

  // As the other collectives.
  virtual void broadcast(at::Tensor& tensor, int root) = 0;
};

}  // namespace dualpipe
