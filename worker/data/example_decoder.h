#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/dataset.h"

namespace gradrail::worker {

namespace proto {
class Example;
}  // namespace proto

/// Decodes records that are a tf.train.Example with an image and its label.
/// Errors  DATA_LOSS: no Example, a missing or wrong feature, a label other than 0 to 9, or an image that contradicts
///         its `height`, `width` and `depth`.
/// Threads  One owner.
class ExampleDecoder {
 public:
  ExampleDecoder();
  ~ExampleDecoder();

  struct Decoded {
    absl::Span<const uint8_t> pixels;  ///< valid until the next call
    uint8_t label = 0;
    ImageSize size = {};
  };
  absl::StatusOr<Decoded> decode(const std::string& record);

 private:
  // Used for each record: protobuf keeps its memory from one parse to the next.
  std::unique_ptr<proto::Example> example_;
};

}  // namespace gradrail::worker
