#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "worker/checkpoint_save.h"
#include "worker/client.h"
#include "worker/control_link.h"
#include "worker/gpu_variables.h"
#include "worker/published_stats.h"
#include "worker/shard_link.h"

namespace gradrail::worker {

/// What is behind Client; set-up in client_join.cc, the exchange in client_exchange.cc, the rest in client.cc.
class Client::Impl {
 public:
  Impl(ClientOptions options, ps::Schema schema);
  ~Impl();

  // client_join.cc
  absl::Status join();

  // client_exchange.cc
  absl::Status start();
  void ready(size_t tensor_index);
  void exchange();
  void progress();
  absl::Status wait();
  absl::Status pull();

  // client_device.cc
  bool on_device() const { return gpu_ != nullptr; }
  std::string gpu_text() const;
  absl::Status fetch();
  bool device_failed() const { return gpu_ != nullptr && !gpu_->status().ok(); }

  // client.cc
  /// Workers that have not joined yet are waited for until then.
  absl::Status barrier(const std::string& name, TimePoint absent_until);
  absl::Status make_no_more_steps();
  bool saves_checkpoints() const { return saves_checkpoints_; }
  absl::Status begin_checkpoint();
  bool checkpoint_under_way() const { return save_->under_way(); }
  absl::StatusOr<std::vector<std::string>> finish_checkpoint();
  absl::Status leave(const std::string& failed = "");
  absl::Span<float> parameters(size_t tensor_index) { return view(parameters_, tensor_index); }
  absl::Span<float> gradients(size_t tensor_index) { return view(gradients_, tensor_index); }
  const ps::Schema& schema() const { return schema_; }
  uint64_t global_step() const;
  uint64_t position() const { return step_ - static_cast<uint64_t>(base_step_); }
  /// All are at one step then, which the ps tells.
  bool sums() const { return ps::Mode{.kind = options_.mode}.sums(); }
  bool is_chief() const { return chief_.load(std::memory_order_relaxed) == options_.task_index; }
  ClientStats stats() const;
  // client_watch.cc
  absl::Status hand_in_trace();
  absl::StatusOr<std::vector<TaskTrace>> gather_trace();
  const PublishedStats& published() const { return published_; }
  std::vector<Mark> marks() const { return recorder_.marks(); }
  std::vector<MemorySpan> memory() const { return {parameters_.span(), gradients_.span()}; }

 private:
  // client_join.cc
  absl::Status allocate();
  absl::Status join_cluster(TimePoint deadline);
  absl::StatusOr<std::string> address_now(uint32_t ps_index) const;
  absl::Status describe_all(TimePoint deadline);
  absl::Status join_all(TimePoint deadline);
  ps::proto::JoinRequest join_request(uint32_t first_shard) const;
  void count_tensors(ShardLink& link);
  absl::Status connect_all(TimePoint deadline);

  void watch(uint32_t ps_index);

  // client_standby.cc
  bool has_standby() const { return !options_.standbys.empty(); }
  void lose(uint32_t ps_index, absl::Status cause);  ///< any thread: fail(), of which a standby may be the remedy
  bool go_to_standbys();
  bool outlives(const absl::Status& failed_call);
  absl::Status go_to_standby(uint32_t ps_index, const absl::Status& cause);
  absl::StatusOr<ps::proto::JoinReply> ask_to_take_over(uint32_t ps_index, ControlLink& standby,
                                                        Duration silence_limit);
  std::unique_ptr<ControlLink> open_control(uint32_t ps_index, const std::string& address, const Notice& notice);
  absl::StatusOr<ps::proto::DescribeReply> describe(uint32_t ps_index, TimePoint deadline);
  absl::Status connect_to_standby(ShardLink& link, const ps::proto::DescribeReply& described,
                                  const ps::proto::JoinReply::Shard& shard);

  // client_rejoin.cc
  bool may_rejoin();
  absl::Status rejoin();
  bool unanswered_step() const;
  absl::Status rejoin_once(TimePoint deadline, uint64_t come_from);
  void let_go();
  void go_back(bool same_servers);
  void remember_version();
  uint64_t position_at(uint64_t version) const;

  // client_paths.cc
  absl::Status connect(ShardLink& link, TimePoint deadline);
  absl::StatusOr<OpenContext*> open_context(const std::string& transport);
  void close_unused_contexts();
  absl::StatusOr<std::unique_ptr<ShardPath>> open_path(ShardLink& link, const transport::Candidate& candidate,
                                                       GpuWay way, TimePoint deadline);
  absl::Status establish(ShardPath& path, ShardPath::Phase until, TimePoint deadline);
  absl::Status try_candidate(ShardLink& link, size_t candidate, TimePoint deadline);
  absl::Status try_way(ShardLink& link, size_t candidate, GpuWay way, TimePoint deadline);
  absl::Status allowed(const ShardPath& path) const;
  void use(ShardLink& link, std::unique_ptr<ShardPath> path, size_t candidate);
  absl::Status move_lost_links();
  absl::Status move(ShardLink& link);
  void replay(ShardLink& link);

  // client_trials.cc
  void come_back();
  bool tries_a_path() const;
  void drop_trials();
  void start_trial(ShardLink& link);
  absl::StatusOr<std::unique_ptr<ShardPath>> open_trial(ShardLink& link, size_t candidate);
  void end_trial(ShardLink& link, const std::string& why);
  bool advance_trials();

  // client_exchange.cc
  bool begin_push();  ///< false: not now, wait() says why
  void begin(ps::ArrivalKind kind);
  void push(ShardLink& link, uint32_t bucket_index);
  void send(ShardLink& link, uint32_t bucket_index);
  bool stages(const ShardLink& link) const;
  void mark(Mark::Kind kind);
  void mark(Mark::Kind kind, const ShardLink& link, uint32_t bucket_index);
  bool send_staged();
  bool post(ShardLink& link, uint32_t bucket_index);
  void post_backlog();
  void take(const transport::Completion& completion);
  void take_answer(ShardLink& link, uint64_t immediate);
  absl::Status may_begin(std::string_view what);
  absl::Status prepare_offer();
  void begun();
  void offer_instead();
  void catch_up();
  absl::Status finish();
  void say_whom_we_wait_for();

  // client_watch.cc
  void hear_of_dumps(uint64_t asked);        ///< any thread
  void report(ps::proto::Ping& ping) const;  ///< any thread
  void answer_dump();

  // client_device.cc
  absl::Status open_gpu();
  std::string why_not_ipc(const ps::proto::DescribeReply& reply, bool same_host, const std::string& ps) const;
  std::vector<GpuWay> ways(const ShardLink& link) const;
  absl::Status reach_gpu(OpenContext& context, GpuWay way);
  absl::Status no_way(const ShardLink& link) const;

  absl::Span<float> view(const SharedMemory& memory, size_t tensor_index);
  void fail(absl::Status cause);  ///< any thread; the first one counts
  absl::Status failure();
  bool asked_to_stop() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }
  ps::proto::Member member() const;

  // Set once.
  ClientOptions options_;
  ps::Schema schema_;
  std::vector<uint64_t> tensor_first_;  ///< element each tensor begins at; one more at the end
  ps::ShardMap map_;
  SharedMemory parameters_;
  SharedMemory gradients_;
  std::unique_ptr<GpuVariables> gpu_;  ///< where variables are at home; null: in the memory above
  bool saves_checkpoints_ = true;
  bool a_shard_is_on_gpu_ = false;
  bool initialised_ = true;  ///< false: the chief must offer values
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::vector<std::string> tokens_;     ///< per ps task
  std::vector<uint64_t> processes_;     ///< per ps task, as it was described
  uint64_t group_ = 0;                  ///< of the ps processes found
  bool began_from_nothing_ = false;     ///< the ps tasks, without a checkpoint
  uint64_t unanswered_ = 0;             ///< 1: the last of those steps had left, and nothing of it was answered
  uint64_t left_position_ = 0;          ///< where this worker was when it left that
  std::optional<uint64_t> left_group_;  ///< that this worker comes from
  uint64_t incarnation_ = 0;

  // Any thread.
  std::atomic<bool> failed_ = false;
  std::atomic<uint32_t> chief_ = 0;
  std::mutex failure_mutex_;
  absl::Status failure_;                      ///< under failure_mutex_
  bool going_to_standbys_ = false;            ///< under failure_mutex_: whoever is lost meanwhile is not what failed
  std::map<uint32_t, absl::Status> lost_ps_;  ///< under failure_mutex_: that may be what failed, with the cause
  PublishedStats published_;
  static constexpr uint64_t kNothingNoticed = UINT64_MAX;
  std::atomic<uint64_t> dumps_noticed_ = kNothingNoticed;  ///< of the ps' last notice
  std::atomic<uint64_t> dumps_heard_ = 0;                  ///< by the heartbeat

  // Owner thread. Links before contexts before the wait set: members are destroyed bottom up.
  transport::WaitSet wait_set_;
  std::vector<std::unique_ptr<OpenContext>> contexts_;
  std::map<std::string, ShardLink::Bytes> path_bytes_;
  std::vector<std::unique_ptr<ShardLink>> links_;
  bool link_lost_ = false;                        ///< at least one path in use has failed
  TimePoint next_come_back_ = TimePoint::max();   ///< when to look for better paths again
  std::vector<std::vector<ShardLink*>> touched_;  ///< per tensor: links with buckets that overlap it
  ps::ArrivalKind kind_{};
  uint64_t step_ = 0;                   ///< of the exchange under way or last done
  int64_t base_step_ = 0;               ///< where this run's steps begin
  int64_t joined_base_ = 0;             ///< as the first ps said it last
  std::atomic<int64_t> told_base_ = 0;  ///< as it says now
  bool rejoining_ = false;
  bool steps_are_done_ = false;  ///< has been said
  /// async, ssp: what this worker had done when it saw a version, to know what is lost with later ones.
  struct Seen {
    uint64_t version = 0;
    uint64_t position = 0;
  };
  std::vector<Seen> seen_;
  uint64_t seen_every_ = 1;      ///< steps between two of them
  uint64_t waited_ns_ = 0;       ///< in this exchange: of the bucket that waited longest
  bool dropped_bucket_ = false;  ///< in this exchange
  bool started_ = false;         ///< holds parameters to compute gradients on
  bool exchanging_ = false;
  TimePoint exchange_start_;
  std::vector<bool> ready_;  ///< per tensor: said to be complete in this exchange
  size_t outstanding_ = 0;   ///< buckets pushed or to be pushed whose answer is missing
  struct Unposted {
    ShardLink* link;
    uint32_t bucket_index;
  };
  std::deque<Unposted> backlog_;
  struct Staged {
    ShardLink* link;
    uint32_t bucket_index;
    gpu::CopyTicket ticket;
  };
  std::deque<Staged> staged_;  ///< on their way to the host, to be sent from there
  std::map<std::string, uint64_t> barrier_generation_;
  bool left_ = false;
  ClientStats stats_;
  FlightRecorder recorder_;
  uint64_t dumped_ = 0;  ///< how many of the dumps that were asked for

  std::vector<std::unique_ptr<ControlLink>> controls_;  ///< behind all that its heartbeats reach by fail()
  std::optional<CheckpointSave> save_{controls_};       ///< last: its thread uses controls_
};

}  // namespace gradrail::worker
