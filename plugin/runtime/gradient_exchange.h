// plugin/runtime/gradient_exchange.h
//
// One message of gradients each way between this rank and another that holds the same logical parameters, and their
// sum.
//
// Both add the lower rank's part first, so that their copies stay equal to the bit. A parameter that got a gradient on
// neither side keeps an undefined one; on one side only, the other counts as zero (plugin/runtime/gradient_buffer.h).
#pragma once

#include <memory>
#include <vector>

#include "plugin/runtime/gradients.h"
#include "plugin/runtime/transport.h"

namespace dualpipe {

// Of one dtype.
struct ExchangedGradients {
  std::vector<std::size_t> indices;  // Of parameters, by name.
  at::Tensor mine;
  at::Tensor theirs;
};

class GradientExchange {
 public:
  // `indices` of parameters, the same names on both sides, one at least. Copies this step's gradients; post() sends
  // them. Throws ScheduleError for a sparse gradient.
  GradientExchange(int peer, std::vector<std::size_t> indices, Gradients& gradients);
  // Never blocks on the peer. The exchange has to outlive what it posts.
  void post(Transport& transport);
  // Waits, and leaves the sums in the step's gradients.
  void finish(const Transport& transport, Gradients& gradients);

 private:
  int peer_;
  std::vector<ExchangedGradients> parts_;
  std::unique_ptr<Transfer> receive_;
  std::unique_ptr<Transfer> send_;
};

}  // namespace dualpipe
