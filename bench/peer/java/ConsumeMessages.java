import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes by RocketMQ's client until SIGTERM, as bench/load_consumer.py does by ours.
 *
 * <p>Messages with the tag `late` are not counted: the producer does not know when they commit.
 *
 * <p>Arguments: name server, topic, messages handed over at once, file for the count, file for the
 * samples: when a message came (s), and how old it was then (ms).
 */
public final class ConsumeMessages {
    private static final String LATE = "late";
    private static final int EVERY = 16; // of so many messages one is a sample
    private static final long TICK_MS = 10;

    private final LongAdder consumed = new LongAdder();
    private final ConcurrentLinkedQueue<String> samples = new ConcurrentLinkedQueue<>();
    private volatile boolean isEnded = false;

    public static void main(String[] arguments) throws Exception {
        ConsumeMessages consumer = new ConsumeMessages();
        CountDownLatch isClosed = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> consumer.end(isClosed)));
        DefaultMQPushConsumer client = new DefaultMQPushConsumer("bench-consumer");
        client.setNamesrvAddr(arguments[0]);
        client.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        client.setConsumeMessageBatchMaxSize(Integer.parseInt(arguments[2]));
        client.subscribe(arguments[1], "*");
        client.registerMessageListener(
                (MessageListenerConcurrently) (messages, context) -> consumer.take(messages));
        client.start();
        CounterFile count = new CounterFile(arguments[3]);
        while (!consumer.isEnded) {
            count.write(consumer.consumed.sum());
            Thread.sleep(TICK_MS);
        }
        client.shutdown();
        count.write(consumer.consumed.sum());
        consumer.writeSamples(Path.of(arguments[4]));
        isClosed.countDown();
    }

    private ConsumeConcurrentlyStatus take(List<MessageExt> messages) {
        long now = System.currentTimeMillis();
        for (MessageExt message : messages) {
            if (LATE.equals(message.getTags())) {
                continue;
            }
            consumed.increment();
            if (message.getQueueOffset() % EVERY == 0) {
                samples.add("[" + now / 1000.0 + ", " + (now - message.getBornTimestamp()) + "]");
            }
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private void writeSamples(Path path) throws IOException {
        Files.writeString(path, samples.stream().collect(Collectors.joining(",\n", "[", "]\n")));
    }

    /** Lets `main` end, and waits until the client is closed and the samples are written. */
    private void end(CountDownLatch isClosed) {
        isEnded = true;
        try {
            isClosed.await(10, TimeUnit.SECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
