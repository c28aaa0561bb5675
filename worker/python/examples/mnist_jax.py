"""Trains the MLP of TensorFlow's distributed MNIST tutorial with JAX and optax.

    gradrail run --ps 1 --workers 2 -- python3 mnist_jax.py --optimizer adam --epochs 3

The parameters are one tensor of gradrail: jax.flatten_util.ravel_pytree makes a flat array of any pytree. optax clips the
gradients at the workers, and the parameter servers run the optimizer.
"""
import time

import gradrail
import jax
import jax.flatten_util
import optax

import mnist_data


def logits(parameters, images):
    hidden = jax.nn.sigmoid(images @ parameters["W1"] + parameters["b1"])
    return hidden @ parameters["W2"] + parameters["b2"]


def main():
    parser = mnist_data.parser(__doc__.splitlines()[0])
    parser.add_argument("--sync", action="store_true", help="one step of all workers")
    parser.add_argument("--clip", type=float, default=10.0, help="largest norm of a gradient")
    flags = parser.parse_args()

    folder = mnist_data.find_folder(flags.data_dir)
    images, labels = mnist_data.load(folder, "train")
    initial, unravel = jax.flatten_util.ravel_pytree(mnist_data.initial_values())
    transform = optax.clip_by_global_norm(flags.clip)

    @jax.jit
    def cost_and_gradient(flat, state, images, labels):
        def cost(flat):
            return optax.softmax_cross_entropy_with_integer_labels(logits(unravel(flat), images), labels).mean()

        value, gradient = jax.value_and_grad(cost)(flat)
        gradient, state = transform.update(gradient, state)
        return value, gradient, state

    @jax.jit
    def accuracy(flat, images, labels):
        return (logits(unravel(flat), images).argmax(1) == labels).mean()

    state = transform.init(initial)
    begin = time.monotonic()
    with gradrail.join({"model": initial}, optimizer=flags.optimizer, learning_rate=flags.learning_rate,
                       mode="sync" if flags.sync else "async") as client:
        client.start()
        progress = mnist_data.Progress(len(images) // flags.batch_size, flags.frequency)
        for epoch, batch, chosen in mnist_data.random_batches(len(images), flags, client.task_index):
            # JAX computes asynchronously, and may use the memory of a NumPy array in place. The assignment of the
            # gradient waits for it, so that JAX reads no parameter during the exchange.
            cost, gradient, state = cost_and_gradient(client.parameters["model"], state, images[chosen], labels[chosen])
            client.gradients["model"] = gradient
            client.step()
            progress.step(client.global_step, epoch, batch, lambda: float(cost))
        client.barrier("all steps are applied")
        client.pull()
        if client.is_chief:
            test_images, test_labels = mnist_data.load(folder, "test")
            print(f"Test-Accuracy: {float(accuracy(client.parameters['model'], test_images, test_labels)):.4f}")
        print(f"Total Time: {time.monotonic() - begin:.2f}s\nFinal Cost: {float(cost):.4f}\ndone", flush=True)


if __name__ == "__main__":
    main()
