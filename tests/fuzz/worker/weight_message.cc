#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "worker/publish/message.h"

namespace gradrail::publish {
namespace {

void try_model(std::string_view text) {
  const absl::StatusOr<Model> model = Model::decode(text);
  if (!model.ok()) {
    // The refusal of a name or a shape names the tensor; others name the list.
    GRADRAIL_CHECK(model.status().code() == absl::StatusCode::kInvalidArgument && !model.status().message().empty());
    return;
  }
  GRADRAIL_CHECK(model->text() == text);
  GRADRAIL_CHECK(*parse_format(name_of(model->format())) == model->format());
  GRADRAIL_CHECK(model->bytes() > 0 && model->offset(model->schema().size()) == model->bytes());
}

void try_request(std::string_view text) {
  const absl::StatusOr<Request> request = decode_request(text);
  if (!request.ok()) return fuzz::check_refusal(request.status(), absl::StatusCode::kDataLoss, "request");
  if (request->have) GRADRAIL_CHECK(encode(*request) == text);
}

void try_frame(std::string_view text) {
  const absl::StatusOr<Frame> frame = decode_frame(text.substr(0, kFrameBytes));
  if (!frame.ok()) return fuzz::check_refusal(frame.status(), absl::StatusCode::kDataLoss, "frame");
  GRADRAIL_CHECK(frame->bytes <= kMaxPayloadBytes);
  const std::string_view payload = text.substr(kFrameBytes);
  if (frame->type == FrameType::end) GRADRAIL_CHECK(!decode_end(payload).ok());
  if (frame->type == FrameType::version) GRADRAIL_CHECK(!decode_version(payload, "key", 0).ok());
  if (frame->type == FrameType::welcome) {
    const absl::StatusOr<Welcome> welcome = decode_welcome(payload);
    if (welcome.ok()) GRADRAIL_CHECK(encode(*welcome) == payload);
  }
}

}  // namespace
}  // namespace gradrail::publish

/// [0 model, 1 request, 2 frame][text].
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::publish;
  if (bytes == 0) return 0;
  const std::string text(gradrail::fuzz::text_of(data + 1, bytes - 1));
  if (data[0] == 0) try_model(text);
  if (data[0] == 1) try_request(text);
  if (data[0] == 2) try_frame(text);
  return 0;
}
