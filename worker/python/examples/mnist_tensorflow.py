"""The distributed MNIST trainer of the TensorFlow tutorials, with gradrail in place of TensorFlow's transport.

    gradrail run --ps 1 --workers 2 -- python3 mnist_tensorflow.py --optimizer adam --epochs 3

or, as in the tutorials, one process for each task:

    python3 mnist_tensorflow.py --ps_hosts 10.0.0.1:2222 --worker_hosts 10.0.0.2:2222,10.0.0.3:2222 \\
        --job_name ps --task_index 0 --secret-file secret      # on 10.0.0.1; then --job_name worker on the others

The ps task becomes `gradrail train`. A worker has a custom loop of TensorFlow 2. Lines with `gradrail` replace the
cluster, the server, the placement of the variables and the optimizer of the tutorial.
"""
import os
import time

import gradrail  # precedes tensorflow, unless it is the wheel: a build shares the protobuf of the host
import tensorflow as tf

import mnist_data


def serve(flags):
    """Replaces this process by a parameter server, as server.join() of the tutorial does."""
    command = ["gradrail", "train", "--job_name", "ps", "--task_index", str(flags.task_index or 0)]
    for flag, value in (("--ps_hosts", flags.ps_hosts), ("--worker_hosts", flags.worker_hosts),
                        ("--secret-file", flags.secret_file)):
        command += [flag, value] if value else []
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise SystemExit(f"cannot run the program gradrail: {error.strerror}; install the wheel, or add its folder to PATH")


@tf.function
def cost_and_gradients(variables, images, labels):
    with tf.GradientTape() as tape:
        hidden = tf.sigmoid(images @ variables["W1"] + variables["b1"])
        logits = hidden @ variables["W2"] + variables["b2"]
        cost = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return cost, tape.gradient(cost, variables)


@tf.function
def accuracy(variables, images, labels):
    hidden = tf.sigmoid(images @ variables["W1"] + variables["b1"])
    logits = hidden @ variables["W2"] + variables["b2"]
    return tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == labels, tf.float32))


def train(flags):
    folder = mnist_data.find_folder(flags.data_dir)
    images, labels = mnist_data.load(folder, "train")
    initial = mnist_data.initial_values()
    variables = {name: tf.Variable(values) for name, values in initial.items()}
    begin = time.monotonic()
    with gradrail.join(initial, optimizer=flags.optimizer, learning_rate=flags.learning_rate,
                       mode="sync" if flags.sync else "async", ps_hosts=flags.ps_hosts, worker_hosts=flags.worker_hosts,
                       task_index=flags.task_index, secret_file=flags.secret_file) as client:

        def fetch():
            for name, variable in variables.items():
                variable.assign(client.parameters[name])

        client.start()
        fetch()
        progress = mnist_data.Progress(len(images) // flags.batch_size, flags.frequency)
        for epoch, batch, chosen in mnist_data.random_batches(len(images), flags, client.task_index):
            cost, gradients = cost_and_gradients(variables, images[chosen], labels[chosen])
            for name, gradient in gradients.items():
                client.gradients[name] = gradient.numpy()
            client.step()
            fetch()
            progress.step(client.global_step, epoch, batch, lambda: float(cost))
        client.barrier("all steps are applied")
        client.pull()
        fetch()
        if client.is_chief:
            test_images, test_labels = mnist_data.load(folder, "test")
            print(f"Test-Accuracy: {float(accuracy(variables, test_images, test_labels)):.4f}")
        print(f"Total Time: {time.monotonic() - begin:.2f}s\nFinal Cost: {float(cost):.4f}\ndone", flush=True)


def main():
    parser = mnist_data.parser(__doc__.splitlines()[0])
    parser.add_argument("--ps_hosts", help="host:port,…; without it, the cluster is that of `gradrail run`")
    parser.add_argument("--worker_hosts", help="host:port,…")
    parser.add_argument("--job_name", default="worker", choices=["ps", "worker"])
    parser.add_argument("--task_index", type=int)
    parser.add_argument("--secret-file", help="the shared secret, required between hosts")
    parser.add_argument("--sync", action="store_true", help="one step of all workers, as the synchronous tutorial")
    flags = parser.parse_args()
    if flags.job_name == "ps":
        serve(flags)
    # Each worker has one thread, as workers on one host share its cores.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    train(flags)


if __name__ == "__main__":
    main()
