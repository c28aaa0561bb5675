#include "conformance/side.h"

#include <algorithm>
#include <array>

#include "conformance/setup.h"
#include "fmt/format.h"

namespace gradrail::conformance {
namespace {

template <typename T>
T check_ok(absl::StatusOr<T> result, std::string_view what) {
  if (!result.ok()) throw Broken(fmt::format("{}: {}", what, result.status().ToString()));
  return *std::move(result);
}

const char* name_of(Kind kind) {
  constexpr std::array kNames = {"connected", "put_done", "get_done", "put_arrived", "message", "peer_lost"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

absl::Span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

Side::Side(const transport::Transport& transport) : transport_(transport), context_(open(transport)), waits_({}) {
  waits_.add(context_.get());
}

Side::~Side() {
  while (!connections_.empty()) close(connections_.back());
}

std::string Side::listen() { return check_ok(context_->listen(any_address(transport_)), "listen"); }

Connection* Side::connect(const std::string& address) {
  Connection* connection = check_ok(context_->connect(address, Clock::now() + timeout()), "connect");
  connections_.push_back(connection);
  return connection;
}

Connection* Side::accept() { return await(Kind::connected).connection; }

Buffer& Side::buffer(size_t bytes, Access access) {
  SharedMemory memory = check_ok(SharedMemory::create("conformance", bytes), "memory");
  auto region = check_ok(context_->register_memory(memory.span(), access), "register_memory");
  return buffers_.emplace_back(Buffer{std::move(memory), std::move(region)});
}

void Side::release(Buffer& buffer) {
  buffer.region.reset();
  buffer.memory = SharedMemory();
}

void Side::close(Connection* connection) {
  context_->close(connection);
  std::erase(connections_, connection);
  std::erase_if(log_, [&](const Event& event) { return event.connection == connection; });
}

absl::Status Side::post(const std::function<absl::Status()>& operation) {
  const TimePoint deadline = Clock::now() + timeout();
  while (true) {
    absl::Status status = operation();
    if (status.code() != absl::StatusCode::kResourceExhausted) return status;
    if (Clock::now() > deadline) throw Broken("queue stays full: " + status.ToString());
    wait_a_little();
  }
}

void Side::must_post(const std::function<absl::Status()>& operation) {
  const absl::Status status = post(operation);
  if (!status.ok()) throw Broken("post: " + status.ToString());
}

void Side::put(Connection* to, LocalSlice source, transport::RemoteSlice target, transport::PutOptions options) {
  must_post([&] { return to->put(source, target, options); });
}

void Side::send(Connection* to, std::string_view message) {
  must_post([&] { return to->send(bytes_of(message)); });
}

bool Side::has(Kind kind, const Connection* connection) const {
  return std::any_of(log_.begin(), log_.end(), [&](const Event& event) {
    return event.kind == kind && (connection == nullptr || event.connection == connection);
  });
}

std::optional<Event> Side::try_await(Kind kind, const Connection* connection, Duration longest) {
  const TimePoint deadline = Clock::now() + longest;
  while (!has(kind, connection)) {
    if (Clock::now() > deadline) return std::nullopt;
    wait_a_little();
  }
  const auto found = std::find_if(log_.begin(), log_.end(), [&](const Event& event) {
    return event.kind == kind && (connection == nullptr || event.connection == connection);
  });
  Event event = std::move(*found);
  log_.erase(found);
  return event;
}

Event Side::await(Kind kind, const Connection* connection, Duration longest) {
  if (auto event = try_await(kind, connection, longest)) return *std::move(event);
  std::string text = fmt::format("no {} came", name_of(kind));
  for (const Event& event : log_) text += fmt::format("; unread: {} {}", name_of(event.kind), event.cause.ToString());
  throw Broken(text);
}

void Side::await_that(const std::function<bool()>& predicate, const char* what) {
  const TimePoint deadline = Clock::now() + timeout();
  while (!predicate()) {
    if (Clock::now() > deadline) throw Broken(std::string("never became true: ") + what);
    wait_a_little();
  }
}

std::string Side::serve_until_stopped(Channel& channel) {
  const TimePoint deadline = Clock::now() + timeout() * 2;
  while (!channel.has_something()) {
    if (Clock::now() > deadline) throw Broken("served long enough");
    wait_a_little();
  }
  return channel.receive();
}

void Side::poll() {
  std::array<Completion, 64> out;
  collect(absl::MakeSpan(out).first(context_->poll(absl::MakeSpan(out))));
}

void Side::wait_a_little() {
  // Short, because predicates also check memory and the test channel, which do not wake a waiter.
  constexpr Duration kSlice = std::chrono::milliseconds(1);
  std::array<Completion, 64> out;
  collect(absl::MakeSpan(out).first(waits_.wait(absl::MakeSpan(out), Clock::now() + kSlice)));
}

void Side::collect(absl::Span<const Completion> completions) {
  for (const Completion& completion : completions) {
    if (completion.kind == Kind::connected) connections_.push_back(completion.connection);
    const std::string message(reinterpret_cast<const char*>(completion.message.data()), completion.message.size());
    log_.push_back(
        {completion.kind, completion.connection, completion.tag, completion.immediate, message, completion.cause});
  }
}

}  // namespace gradrail::conformance
