// A table of functions that breaks the contract in one way after another: each is an error with the name of the
// plug-in.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "base/gpu_memory.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/c_plugin/context.h"
#include "transport/c_plugin/table.h"

// The handle types of the plug-in below.
struct gradrail_transport_context {
  int connections_made = 0;
};
struct gradrail_transport_connection {
  int number = 0;
};
struct gradrail_transport_region {
  gradrail_transport_memory memory{};
};

namespace gradrail::transport::c_plugin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Results of the functions; a test changes one field. The functions have no other state.
struct Script {
  int code = GRADRAIL_TRANSPORT_OK;  ///< of posts, import, listen, connect, register_memory
  std::string text;
  bool text_has_end = true;
  bool opens = true;
  gradrail_transport_capabilities capabilities{.max_message_bytes = 4096, .immediate_bits = 64};
  int wait_fd = STDIN_FILENO;
  bool gives_region = true;
  size_t key_bytes = 8;
  bool gives_connection = true;
  bool connects_anew = true;
  bool gives_address = true;
  std::vector<gradrail_transport_completion> completions;
  size_t poll_returns = SIZE_MAX;

  // Seen.
  gradrail_transport_put put{};
  gradrail_transport_get get{};
  gradrail_transport_memory memory{};
  int posts = 0, polls = 0, disconnects = 0, deregistrations = 0, closes = 0;
};

Script script;
std::array<gradrail_transport_connection, 3> connections;
gradrail_transport_region region;

int result(gradrail_transport_text* error) {
  if (script.text_has_end) {
    std::memcpy(error->text, script.text.c_str(), script.text.size() + 1);
  } else {
    std::memset(error->text, 'x', sizeof(error->text));
  }
  return script.code;
}

gradrail_transport_table good_table() {
  return {
      .table_bytes = sizeof(gradrail_transport_table),
      .library = nullptr,
      .open =
          [](const gradrail_transport_options*, gradrail_transport_context** context, gradrail_transport_text*) {
            *context = script.opens ? new gradrail_transport_context : nullptr;
            return 0;
          },
      .close =
          [](gradrail_transport_context* context) {
            ++script.closes;
            delete context;
          },
      .capabilities = [](const gradrail_transport_context*,
                         gradrail_transport_capabilities* found) { *found = script.capabilities; },
      .register_memory =
          [](gradrail_transport_context*, const gradrail_transport_memory* memory, gradrail_transport_region** added,
             gradrail_transport_key* key, gradrail_transport_text* error) {
            script.memory = *memory;
            *added = script.gives_region ? &region : nullptr;
            std::memset(key->data, 'k', sizeof(key->data));
            key->bytes = script.key_bytes;
            return result(error);
          },
      .deregister_memory = [](gradrail_transport_context*, gradrail_transport_region*) { ++script.deregistrations; },
      .listen =
          [](gradrail_transport_context*, const char*, gradrail_transport_text* bound, gradrail_transport_text* error) {
            std::strcpy(bound->text, script.gives_address ? "here:1" : "");
            return result(error);
          },
      .connect =
          [](gradrail_transport_context* context, const char*, uint64_t, gradrail_transport_connection** connection,
             gradrail_transport_text* error) {
            *connection = script.gives_connection ? &connections[context->connections_made] : nullptr;
            context->connections_made += script.connects_anew ? 1 : 0;
            return result(error);
          },
      .disconnect = [](gradrail_transport_context*, gradrail_transport_connection*) { ++script.disconnects; },
      .import_region =
          [](gradrail_transport_connection*, const void*, size_t, uint64_t* imported, gradrail_transport_text* error) {
            *imported = 77;
            return result(error);
          },
      .put =
          [](gradrail_transport_connection*, const gradrail_transport_put* put, gradrail_transport_text* error) {
            script.put = *put;
            ++script.posts;
            return result(error);
          },
      .get =
          [](gradrail_transport_connection*, const gradrail_transport_get* get, gradrail_transport_text* error) {
            script.get = *get;
            ++script.posts;
            return result(error);
          },
      .send =
          [](gradrail_transport_connection*, const void*, size_t, gradrail_transport_text* error) {
            ++script.posts;
            return result(error);
          },
      .poll =
          [](gradrail_transport_context*, gradrail_transport_completion* completions, size_t capacity) {
            ++script.polls;
            const size_t count = std::min(script.completions.size(), capacity);
            std::copy_n(script.completions.begin(), count, completions);
            script.completions.erase(script.completions.begin(), script.completions.begin() + count);
            return script.poll_returns == SIZE_MAX ? count : script.poll_returns;
          },
      .wait_fd = [](const gradrail_transport_context*) { return script.wait_fd; },
      .arm = [](gradrail_transport_context*) { return 1; },
  };
}

class CPlugin : public ::testing::Test {
 protected:
  CPlugin() : table_(Table::read("fake", "/plugins/fake.so", good_table()).value()) { script = {}; }

  std::string why_not_opened() { return std::string(message_of(open(table_, {}).status())); }
  void open_it() { context_ = open(table_, {}).value(); }
  Connection* connect() { return context_->connect("there:1", Clock::now() + std::chrono::seconds(1)).value(); }

  /// Polls until nothing more comes.
  std::vector<Completion> poll_all() {
    std::vector<Completion> all;
    std::array<Completion, 8> some;
    while (const size_t count = context_->poll(absl::MakeSpan(some)))
      all.insert(all.end(), some.begin(), some.begin() + count);
    return all;
  }

  /// A completion that must not be: every connection is lost with the defect as cause, and stays unusable.
  void expect_defect(const gradrail_transport_completion& completion, const std::string& words) {
    SCOPED_TRACE(words);
    script = {};
    open_it();
    std::array<Connection*, 2> open_ones = {connect(), connect()};
    script.completions = {completion};
    expect_all_lost(open_ones, words);
    context_.reset();
    EXPECT_EQ(script.closes, 1);
  }

  void expect_all_lost(const std::array<Connection*, 2>& open_ones, const std::string& words) {
    std::array<Completion, 8> none;
    EXPECT_EQ(context_->poll(absl::MakeSpan(none).first(0)), 0u);
    const std::vector<Completion> completions = poll_all();
    ASSERT_EQ(completions.size(), open_ones.size());
    for (const Completion& lost : completions) {
      EXPECT_EQ(lost.kind, Completion::Kind::peer_lost);
      EXPECT_THAT(std::string(message_of(lost.cause)),
                  AllOf(StartsWith("fake: defect of the plug-in /plugins/fake.so"), HasSubstr(words)));
    }
    const int polls = script.polls;
    const int posts = script.posts;
    poll_all();
    EXPECT_TRUE(context_->arm());
    EXPECT_TRUE(absl::IsUnavailable(open_ones[0]->send({})));
    EXPECT_FALSE(context_->connect("there:1", Clock::now()).ok());
    EXPECT_EQ(script.polls, polls) << "the plug-in was called again";
    EXPECT_EQ(script.posts, posts) << "the plug-in was called again";
    for (Connection* connection : open_ones) context_->close(connection);
    EXPECT_EQ(script.disconnects, 2);
  }

  const Table table_;
  std::unique_ptr<Context> context_;
};

TEST_F(CPlugin, OpensAndEndsEverythingOnce) {
  open_it();
  EXPECT_EQ(context_->name(), "fake");
  EXPECT_EQ(context_->listen("here:0").value(), "here:1");
  EXPECT_TRUE(absl::IsFailedPrecondition(context_->listen("here:0").status())) << "listens already";
  Connection* closed = connect();
  connect();
  context_->close(closed);
  std::byte memory[10];
  context_->register_memory({.data = memory, .bytes = 10}, Access::remote_read_write).value().reset();
  EXPECT_EQ(script.memory.access, 3u);
  EXPECT_EQ(script.memory.fd, -1);
  context_.reset();
  EXPECT_EQ(script.disconnects, 2);
  EXPECT_EQ(script.deregistrations, 1);
  EXPECT_EQ(script.closes, 1);
}

TEST_F(CPlugin, ContextThatBreaksTheContractIsNotOpened) {
  script.opens = false;
  EXPECT_THAT(why_not_opened(), HasSubstr("open returned OK without a context"));
  script = {};
  script.capabilities.max_message_bytes = 4095;
  EXPECT_THAT(why_not_opened(), HasSubstr("max_message_bytes is 4095, less than 4096"));
  for (const uint32_t bits : {0, 19, 65}) {
    script = {};
    script.capabilities.immediate_bits = bits;
    EXPECT_THAT(why_not_opened(), HasSubstr("immediate_bits is " + std::to_string(bits)));
  }
  script = {};
  script.capabilities.direct_map = 1;
  EXPECT_THAT(why_not_opened(), HasSubstr("there is no map()"));
  script = {};
  script.wait_fd = -1;
  EXPECT_THAT(why_not_opened(), HasSubstr("wait_fd returned -1"));
  EXPECT_EQ(script.closes, 1) << "a refused context is closed";
}

TEST_F(CPlugin, ErrorsCarryNameCodeAndText) {
  open_it();
  Connection* connection = connect();
  script.code = GRADRAIL_TRANSPORT_UNAVAILABLE;
  script.text = "cable\x1b unplugged";
  absl::Status status = connection->send({});
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(message_of(status), "fake: cable? unplugged");
  script.text.clear();
  EXPECT_EQ(message_of(connection->send({})), "fake: send failed without a text (a defect of /plugins/fake.so)");
  script.code = GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED;
  EXPECT_TRUE(absl::IsResourceExhausted(connection->send({})));
  for (const int code : {-1, 1, 2, 77}) {
    script.code = code;
    status = connection->send({});
    EXPECT_TRUE(absl::IsInternal(status));
    EXPECT_THAT(std::string(message_of(status)), HasSubstr("send returned the unknown code " + std::to_string(code)));
  }
  script.code = GRADRAIL_TRANSPORT_INTERNAL;
  script.text_has_end = false;
  EXPECT_EQ(connection->send({}).message().size(), GRADRAIL_TRANSPORT_TEXT_BYTES + strlen("fake: "));
}

TEST_F(CPlugin, ResultsWithoutContentAreDefects) {
  open_it();
  std::byte memory[10];
  const MemorySpan span = {.data = memory, .bytes = 10};
  script.gives_region = false;
  EXPECT_THAT(context_->register_memory(span, Access::local).status().ToString(), HasSubstr("without a region"));
  script.gives_region = true;
  for (const size_t bytes : {0, GRADRAIL_TRANSPORT_KEY_BYTES + 1}) {
    script.key_bytes = bytes;
    EXPECT_THAT(context_->register_memory(span, Access::local).status().ToString(),
                HasSubstr("a key of " + std::to_string(bytes) + " bytes"));
  }
  EXPECT_EQ(script.deregistrations, 2) << "a region without a key is not kept";
  script.gives_connection = false;
  EXPECT_THAT(context_->connect("there:1", Clock::now()).status().ToString(),
              HasSubstr("connect returned no connection"));
  script.gives_connection = true;
  script.connects_anew = false;
  connect();
  EXPECT_THAT(context_->connect("there:1", Clock::now()).status().ToString(),
              HasSubstr("connect returned a connection that is already open"));
  script.gives_address = false;
  EXPECT_THAT(context_->listen("here:0").status().ToString(), HasSubstr("listen returned OK without an address"));
}

TEST_F(CPlugin, ArgumentsAreCheckedBeforeThePluginIsCalled) {
  open_it();
  Connection* connection = connect();
  std::byte memory[100];
  const auto local = context_->register_memory({.data = memory, .bytes = 100}, Access::local).value();
  const RemoteRegion remote = connection->import("a key").value();
  const auto is_refused = [](const absl::Status& status) { return absl::IsInvalidArgument(status); };
  EXPECT_TRUE(is_refused(connection->put({local.get(), 1, 100}, {remote, 0}, {})));
  EXPECT_TRUE(is_refused(connection->put({nullptr, 0, 1}, {remote, 0}, {})));
  EXPECT_TRUE(is_refused(connection->put({local.get(), 0, 100}, {RemoteRegion{}, 0}, {})));
  EXPECT_TRUE(is_refused(connection->get({local.get(), SIZE_MAX, 2}, {remote, 0}, 1)));
  EXPECT_TRUE(is_refused(connection->get({local.get(), 0, 100}, {RemoteRegion{2}, 0}, 1)));
  const std::vector<std::byte> long_message(4097);
  EXPECT_TRUE(is_refused(connection->send(long_message)));
  EXPECT_TRUE(is_refused(connection->import("").status()));
  EXPECT_TRUE(is_refused(connection->import(std::string(GRADRAIL_TRANSPORT_KEY_BYTES + 1, 'k')).status()));
  EXPECT_TRUE(absl::IsUnimplemented(connection->map(remote).status()));
  EXPECT_TRUE(is_refused(
      context_->register_memory({.data = memory, .bytes = 10, .kind = MemoryKind::cuda}, Access::local).status()));
  EXPECT_EQ(script.posts, 0);
}

TEST_F(CPlugin, PostsReachThePluginAndTheirTagsReturn) {
  script.capabilities.immediate_bits = 32;
  open_it();
  Connection* connection = connect();
  std::byte memory[100];
  const auto local = context_->register_memory({.data = memory, .bytes = 100}, Access::local).value();
  const RemoteRegion remote = connection->import("a key").value();
  ASSERT_TRUE(connection->put({local.get(), 5, 20}, {remote, 9}, {.immediate = UINT64_MAX, .tag = 1234}).ok());
  EXPECT_EQ(script.put.source, &region);
  EXPECT_EQ(script.put.source_offset, 5u);
  EXPECT_EQ(script.put.bytes, 20u);
  EXPECT_EQ(script.put.target_region, 77u);
  EXPECT_EQ(script.put.target_offset, 9u);
  EXPECT_EQ(script.put.notify, 1u);
  EXPECT_EQ(script.put.immediate, UINT32_MAX);
  ASSERT_TRUE(connection->get({local.get(), 6, 30}, {remote, 10}, 0).ok());
  EXPECT_EQ(script.get.target, &region);
  EXPECT_NE(script.get.operation, 0u);
  script.completions = {
      {.kind = GRADRAIL_TRANSPORT_GET_DONE, .connection = &connections[0], .operation = script.get.operation},
      {.kind = GRADRAIL_TRANSPORT_PUT_DONE, .connection = &connections[0], .operation = script.put.operation},
      {.kind = GRADRAIL_TRANSPORT_PUT_ARRIVED, .connection = &connections[0], .immediate = 3},
      {.kind = GRADRAIL_TRANSPORT_CONNECTED, .connection = &connections[2]},
      {.kind = GRADRAIL_TRANSPORT_MESSAGE, .connection = &connections[2], .message = "hello", .message_bytes = 5},
      {.kind = GRADRAIL_TRANSPORT_PEER_LOST,
       .connection = &connections[2],
       .cause = GRADRAIL_TRANSPORT_UNAVAILABLE,
       .cause_text = "left"}};
  const std::vector<Completion> completions = poll_all();
  ASSERT_EQ(completions.size(), 6u);
  EXPECT_EQ(completions[0].tag, 0u);
  EXPECT_EQ(completions[1].tag, 1234u);
  EXPECT_EQ(completions[2].immediate, 3u);
  EXPECT_EQ(completions[4].message.size(), 5u);
  EXPECT_EQ(completions[5].connection, completions[3].connection);
  EXPECT_EQ(message_of(completions[5].cause), "fake: left");
  ASSERT_TRUE(connection->put({}, {}, {.immediate = 4}).ok()) << "a put that only notifies has no region";
  EXPECT_EQ(script.put.operation, 0u) << "a put without a tag";
  context_->close(completions[3].connection);
  context_->close(connection);
}

TEST_F(CPlugin, CompletionsThatBreakTheContractEndItsUse) {
  gradrail_transport_connection unknown;
  expect_defect({.kind = 0, .connection = &connections[0]}, "unknown kind 0");
  expect_defect({.kind = 9, .connection = &connections[0]}, "unknown kind 9");
  expect_defect({.kind = GRADRAIL_TRANSPORT_PUT_ARRIVED, .connection = &unknown}, "a connection that is not open");
  expect_defect({.kind = GRADRAIL_TRANSPORT_MESSAGE}, "a connection that is not open");
  expect_defect({.kind = GRADRAIL_TRANSPORT_CONNECTED}, "CONNECTED returned no connection");
  expect_defect({.kind = GRADRAIL_TRANSPORT_CONNECTED, .connection = &connections[1]}, "already open");
  expect_defect({.kind = GRADRAIL_TRANSPORT_PUT_DONE, .connection = &connections[0], .operation = 5},
                "PUT_DONE: operation 5 is no put that is outstanding");
  expect_defect({.kind = GRADRAIL_TRANSPORT_GET_DONE, .connection = &connections[0], .operation = 5},
                "GET_DONE: operation 5 is no get that is outstanding");
  expect_defect({.kind = GRADRAIL_TRANSPORT_MESSAGE, .connection = &connections[0], .message_bytes = 1},
                "a message of 1 bytes");
  expect_defect(
      {.kind = GRADRAIL_TRANSPORT_MESSAGE, .connection = &connections[0], .message = "", .message_bytes = 4097},
      "a message of 4097 bytes");
}

TEST_F(CPlugin, MoreCompletionsThanRoomEndItsUse) {
  open_it();
  const std::array<Connection*, 2> open_ones = {connect(), connect()};
  script.poll_returns = 9;
  expect_all_lost(open_ones, "completions for room of");
}

TEST_F(CPlugin, CompletionOfAPutThatWasRefusedIsUnknown) {
  open_it();
  Connection* connection = connect();
  script.code = GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED;
  EXPECT_TRUE(absl::IsResourceExhausted(connection->put({}, {}, {.tag = 1})));
  script.completions = {
      {.kind = GRADRAIL_TRANSPORT_PUT_DONE, .connection = &connections[0], .operation = script.put.operation}};
  const std::vector<Completion> completions = poll_all();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_THAT(completions[0].cause.ToString(), HasSubstr("no put that is outstanding"));
}

TEST_F(CPlugin, CompletionsBeforeADefectAreStillReported) {
  open_it();
  connect();
  script.completions = {{.kind = GRADRAIL_TRANSPORT_PUT_ARRIVED, .connection = &connections[0], .immediate = 1},
                        {.kind = 9, .connection = &connections[0]},
                        {.kind = GRADRAIL_TRANSPORT_PUT_ARRIVED, .connection = &connections[0], .immediate = 2}};
  const std::vector<Completion> completions = poll_all();
  ASSERT_EQ(completions.size(), 2u);
  EXPECT_EQ(completions[0].immediate, 1u);
  EXPECT_EQ(completions[1].kind, Completion::Kind::peer_lost);
}

TEST_F(CPlugin, LossWithoutACauseIsStillALoss) {
  for (const int code : {0, 77}) {
    script = {};
    open_it();
    Connection* connection = connect();
    script.completions = {{.kind = GRADRAIL_TRANSPORT_PEER_LOST, .connection = &connections[0], .cause = code},
                          {.kind = GRADRAIL_TRANSPORT_PUT_ARRIVED, .connection = &connections[0]}};
    const std::vector<Completion> completions = poll_all();
    ASSERT_EQ(completions.size(), 1u) << "it is reported once";
    EXPECT_THAT(completions[0].cause.ToString(), HasSubstr("defect of the plug-in"));
    EXPECT_TRUE(absl::IsUnavailable(connection->send({})));
    context_->close(connection);
    context_.reset();
  }
}

/// Memory of a GPU that is none: its dma-buf is an open file.
class FakeGpuMemory final : public GpuMemorySource {
 public:
  explicit FakeGpuMemory(NicGpuTransfer way) : GpuMemorySource(3, way) {}
  absl::StatusOr<DmaBuf> export_dma_buf(const void*, size_t) const override {
    return DmaBuf{FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)), 16, 4096};
  }
};

TEST_F(CPlugin, GpuMemoryNeedsTheMatchingCapability) {
  std::byte memory[10];
  const FakeGpuMemory dma_buf(NicGpuTransfer::dma_buf);
  const FakeGpuMemory peer_memory(NicGpuTransfer::peer_memory);
  const auto try_it = [&](const FakeGpuMemory& gpu) {
    open_it();
    return context_
        ->register_memory({.data = memory, .bytes = 10, .kind = MemoryKind::cuda, .gpu = &gpu}, Access::local)
        .status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(try_it(dma_buf)));
  EXPECT_TRUE(absl::IsInvalidArgument(try_it(peer_memory)));
  script.capabilities.gpu_dma_buf = 1;
  EXPECT_TRUE(try_it(dma_buf).ok());
  EXPECT_EQ(script.memory.kind, static_cast<uint32_t>(GRADRAIL_TRANSPORT_GPU_DMA_BUF));
  EXPECT_GE(script.memory.dma_buf_fd, 0);
  EXPECT_EQ(script.memory.dma_buf_offset, 16u);
  EXPECT_EQ(script.memory.gpu, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(try_it(peer_memory)));
  script.capabilities.gpu_peer_memory = 1;
  EXPECT_TRUE(try_it(peer_memory).ok());
  EXPECT_EQ(script.memory.kind, static_cast<uint32_t>(GRADRAIL_TRANSPORT_GPU_PEER_MEMORY));
  EXPECT_EQ(script.memory.dma_buf_fd, -1);
}

}  // namespace
}  // namespace gradrail::transport::c_plugin
