// The ranks that join the first one: an input is a list of hellos, each with its length.
#include <google/protobuf/stubs/logging.h>

#include "base/check.h"
#include "base/status.h"
#include "launch/rendezvous/assignment_table.h"
#include "launch/rendezvous/rendezvous.pb.h"
#include "tests/fuzz/fuzz.h"
#include "transport/common/byte_codec.h"

namespace gradrail::launch {
namespace {

constexpr uint32_t kSize = 4, kPsCount = 2;

void run(transport::common::ByteReader& in) {
  AssignmentTable table(kSize, kPsCount);
  size_t taken = 0;
  while (in.ok()) {
    const std::string_view bytes = in.text(UINT16_MAX);
    proto::RankMessage message;
    if (!in.ok() || !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) break;
    const absl::Status task = table.take(message.hello());
    taken += task.ok() ? 1 : 0;
    GRADRAIL_CHECK(task.ok() || !task.message().empty());
    GRADRAIL_CHECK(table.missing().size() == kSize - taken);
  }
  if (!table.missing().empty()) return;
  table.set_first_address("10.0.0.1");
  GRADRAIL_CHECK(table.hellos().size() == kSize);
  for (uint32_t rank = 0; rank < kSize; ++rank) {
    const proto::RankAssignment assignment = table.assignment_of(rank);
    GRADRAIL_CHECK(assignment.ps_hosts_size() == kPsCount && assignment.worker_hosts_size() == kSize - kPsCount);
    GRADRAIL_CHECK(assignment.place_on_host() <= rank);
  }
}

}  // namespace
}  // namespace gradrail::launch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const google::protobuf::LogSilencer kSilence;
  gradrail::transport::common::ByteReader in(gradrail::fuzz::text_of(data, bytes));
  gradrail::launch::run(in);
  return 0;
}
