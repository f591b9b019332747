#include "tests/bench/peers/ping.h"

#include <ATen/ops/zeros.h>

#include <vector>

#include "tests/bench/support/serve.h"

namespace dualpipe::bench {

nlohmann::json answer_by_ping(c10d::Backend& gloo, const nlohmann::json& request) {
  if (!request.contains("at")) return {{"ready", true}};
  const int size = gloo.getSize(), rank = gloo.getRank();
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const int exchanges = request.at("exchanges");
  const auto values = request.at("bytes").get<std::int64_t>() / static_cast<std::int64_t>(sizeof(float));
  std::vector<at::Tensor> out{at::zeros({values})}, in{at::zeros({values})};
  nlohmann::json answer = timed(request, [&] {
    for (int i = 0; i < exchanges; ++i) {
      const auto received = gloo.recv(in, previous, i);
      const auto sent = gloo.send(out, next, i);
      received->wait();
      sent->wait();
    }
  });
  answer.update({{"actions", exchanges}, {"operations", exchanges}});
  return answer;
}

}  // namespace dualpipe::bench
