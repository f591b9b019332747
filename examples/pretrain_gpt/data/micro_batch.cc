#include "examples/pretrain_gpt/data/micro_batch.h"

#include <utility>

namespace pretrain_gpt {

ReadMicroBatch read_by(std::function<MicroBatch(int index)> read) {
  return {[read](int index) { return read(index).tokens; },
          [read](int index) {
            MicroBatch batch = read(index);
            return Targets{std::move(batch.labels), std::move(batch.loss_mask)};
          }};
}

}  // namespace pretrain_gpt
