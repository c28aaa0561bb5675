"""The Python package in a process: forks, threads, the log, and the end of the program."""
import signal
import unittest

import cluster
import package


class Processes(package.PackageTest):
    def test_a_forked_child_is_refused(self):
        self.good_run("""
client = gradrail.join({"w": (2,)})
client.start()
child = os.fork()
if child == 0:
    refused(gradrail.FailedPrecondition, "forked", client.exchange)
    refused(gradrail.FailedPrecondition, "forked", lambda: client.global_step)
    sys.exit(7)  # at the end of the child no client leaves, and no call blocks
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
client.exchange()
client.wait()
client.leave()
""", workers=1)

    def test_a_second_thread_is_refused(self):
        self.good_run("""
client = gradrail.join({"w": (2,)}, mode="sync")
client.start()
if client.task_index == 0:
    def wait():
        client.exchange()
        client.wait()
    waiting = threading.Thread(target=wait)
    waiting.start()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            client.stats()
        except gradrail.FailedPrecondition as error:
            assert "another thread" in str(error) and error.code == 9
            break
    else:
        raise AssertionError("no call was refused")
    refused(gradrail.FailedPrecondition, "another thread", lambda: client.position)
    open(os.environ["FLAG"], "w").close()
    assert client.task_index == 0 and client.is_chief  # any thread
    waiting.join()
else:
    while not os.path.exists(os.environ["FLAG"]):
        time.sleep(0.01)
    client.exchange()
    client.wait()
client.exchange()  # another thread, one after the other
client.wait()
client.leave()
""", environment={"FLAG": str(self.folder / "flag")})

    @cluster.long("a_daemon_thread_in_join_ends_with_the_program has no client yet")
    def test_a_daemon_thread_in_a_call_ends_with_the_program(self):
        # The process aborted: Python ended the thread in a callback of the library.
        for call, other in (("step()", "pass"), ("barrier('b')", "pass"), ("step()", "client.step()")):
            with self.subTest(call=call, other=other):
                task = self.good_run("""
client = gradrail.join({"w": (2,)}, mode="sync")
client.start()
if client.task_index == 0:
    def work():
        try:
            while True:
                client.CALL
        except Exception as error:
            print("wrong", repr(error), flush=True)
        finally:
            print("finally", flush=True)
    threading.Thread(target=work, daemon=True).start()
    time.sleep(1)
else:
    end = time.monotonic() + 4
    while time.monotonic() < end:
        OTHER
        time.sleep(0.01)
    client.leave()
""".replace("CALL", call).replace("OTHER", other))
                self.assertTrue(task.has("finally"), task.transcript())
                self.assertFalse(task.has("was lost|wrong|Traceback"), task.transcript())

    def test_a_daemon_thread_in_join_ends_with_the_program(self):
        port, = cluster.free_ports(1)
        task = self.start_program(f"""
def work():
    try:
        gradrail.join({{"w": 1}}, ps_hosts="127.0.0.1:{port}", worker_hosts="localhost:1")
    finally:
        print("finally", flush=True)
import linecache
thread = threading.Thread(target=work, daemon=True)
thread.start()
def is_in_the_library():
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and "LIBRARY.gradrail_join" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
while not is_in_the_library():
    time.sleep(0.01)
""")
        self.assert_ends(task, cluster.GOOD)
        self.assertTrue(task.has("finally"), task.transcript())
        self.assertFalse(task.has("Traceback"), task.transcript())

    def test_calls_at_the_end_of_the_program_are_refused(self):
        self.good_run("""
import atexit
def at_end():
    client.leave()  # has no effect
    refused(gradrail.FailedPrecondition, "after leave()", client.step)
    print("refused at the end", flush=True)
atexit.unregister(gradrail.client._leave_all)
atexit.register(at_end)
atexit.register(gradrail.client._leave_all)  # as in a program that registers before its import of gradrail
client = gradrail.join({"w": (2,)})
client.start()
""", workers=1).wait_for("refused at the end", cluster.FINISH)

    @cluster.long("MembershipTest has the rule; no other test makes these calls after a silence")
    def test_calls_after_a_suspension_find_a_member_again(self):
        saved = self.folder / "saved"
        server, environment = self.start_server(1, "--heartbeat-timeout", 1, "--checkpoint_dir", saved)
        program = self.start_program("""
client = gradrail.join({"w": (2,)}, rejoin_timeout=30)
client.start()
def two_steps():  # the suspension takes the first one
    client.step()
    client.step()
for number, call in enumerate((client.save_checkpoint, lambda: client.barrier("b"), client.pull, two_steps,
                               client.finish_steps, client.pull, client.save_checkpoint)):
    print("suspended", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    call()
    client.barrier(f"member {number}")  # the data path may have carried a pull before the loss was noticed
print("suspended", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
client.leave()
""", environment(0))
        for count in range(1, 9):
            for task, line in ((program, "suspended"), (server, "was lost: no heartbeat for 1 s")):
                cluster.wait_until(lambda task=task, line=line, count=count: task.text().count(line) == count,
                                   cluster.START, task.transcript)
            program.signal(signal.SIGCONT)
        self.assert_ends(program, cluster.GOOD)
        # Without an end of the membership the ps would wait 90 s for its return.
        self.assert_ends(server, cluster.GOOD, 20 * cluster.PATIENCE)
        self.assertEqual(len(list(saved.glob("*.ckpt"))), 2, program.transcript())

    @cluster.long("no other test has a handler of logging; its warning comes after ten seconds")
    def test_the_log_arrives_in_logging(self):
        self.good_run("""
import logging
records = []
def emit(record):
    records.append(record)
    raise RuntimeError("an exception of a handler does not reach the library")
handler = logging.Handler()
handler.emit = emit
log = logging.getLogger("gradrail")
log.addHandler(handler)
log.setLevel(logging.DEBUG)
log.propagate = False
client = gradrail.join({"w": (1,)}, mode="sync")
client.start()
if client.task_index == 0:
    client.exchange()
    client.wait()  # ten seconds, until it warns that worker 1 is awaited
    assert any(record.levelno == logging.WARNING and "worker" in record.getMessage() for record in records), records
else:
    time.sleep(12)
    client.exchange()
    client.wait()
client.leave()
""")

    def test_programs_without_errors_are_silent(self):
        task = self.start_program("", {"GRADRAIL_LOG": "debug"})
        self.assert_ends(task, cluster.GOOD)
        self.assertEqual(task.text(), "")


if __name__ == "__main__":
    unittest.main()
