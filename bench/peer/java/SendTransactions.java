import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends transactions by RocketMQ's client until SIGTERM, as bench/load_producer.py does by ours; then it waits
 * until all is consumed.
 *
 * <p>It sends while not more than `inFlight` committed messages are not consumed yet. A message
 * whose end comes only by a check has the tag `late` and is not counted as committed.
 *
 * <p>Arguments: name server, topic, queues, threads, body bytes, in flight, share rolled back,
 * share unanswered, file for the counts (sent, committed, failed), file of the consumer's count.
 */
public final class SendTransactions {
    private static final String LATE = "late";
    private static final String[] REGIONS = {"eu-north", "eu-west", "us-east"};
    private static final long TICK_MS = 10;
    private static final long AGAIN_MS = 200;
    // A broker tells the name server of itself 10 s after its start.
    private static final long REGISTER_S = 40;
    private static final long SETTLE_S = 60; // RocketMQ looks for halves without an end every 30 s

    private final TransactionMQProducer producer = new TransactionMQProducer("bench");
    private final String topic;
    private final int bodyBytes;
    private final double rolledBack;
    private final double unanswered;
    private final AtomicLong started = new AtomicLong();
    private final LongAdder sent = new LongAdder();
    private final LongAdder committed = new LongAdder();
    private final LongAdder failed = new LongAdder();
    private volatile boolean hasRoom = true;
    private volatile boolean isEnded = false;

    private SendTransactions(String topic, int bodyBytes, double rolledBack, double unanswered) {
        this.topic = topic;
        this.bodyBytes = bodyBytes;
        this.rolledBack = rolledBack;
        this.unanswered = unanswered;
    }

    public static void main(String[] arguments) throws Exception {
        SendTransactions sender =
                new SendTransactions(
                        arguments[1],
                        Integer.parseInt(arguments[4]),
                        Double.parseDouble(arguments[6]),
                        Double.parseDouble(arguments[7]));
        CountDownLatch isClosed = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> sender.end(isClosed)));
        try {
            sender.start(arguments[0], Integer.parseInt(arguments[2]));
        } catch (Exception error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // the client's threads would go on
        }
        int threads = Integer.parseInt(arguments[3]);
        for (int number = 0; number < threads; number++) {
            SplittableRandom random = new SplittableRandom(number);
            Thread thread = new Thread(() -> sender.send(random), "send-" + number);
            thread.setDaemon(true);
            thread.start();
        }
        long inFlight = Long.parseLong(arguments[5]);
        sender.count(inFlight, new CounterFile(arguments[8]), new CounterFile(arguments[9]));
        sender.producer.shutdown();
        isClosed.countDown();
    }

    private void start(String nameServer, int queues) throws Exception {
        producer.setNamesrvAddr(nameServer);
        producer.setTransactionListener(new Listener());
        producer.start();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(REGISTER_S);
        while (true) {
            try {
                // "TBW102" is the topic from which RocketMQ makes others.
                producer.createTopic("TBW102", topic, queues, Map.of());
                return;
            } catch (MQClientException error) {
                if (System.nanoTime() > deadline) {
                    throw error;
                }
                Thread.sleep(AGAIN_MS);
            }
        }
    }

    /** Writes the counts, and lets the threads send while there is room. */
    private void count(long inFlight, CounterFile counts, CounterFile consumed) throws Exception {
        while (!isEnded) {
            hasRoom = committed.sum() - consumed.readFirst() < inFlight;
            counts.write(sent.sum(), committed.sum(), failed.sum());
            Thread.sleep(TICK_MS);
        }
        // Nothing more is sent; what the broker lost of the ends comes back as checks, which this
        // client answers.
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SETTLE_S);
        do {
            counts.write(sent.sum(), committed.sum(), failed.sum());
            Thread.sleep(TICK_MS);
        } while (consumed.readFirst() < committed.sum() && System.nanoTime() < deadline);
        counts.write(sent.sum(), committed.sum(), failed.sum());
    }

    private void send(SplittableRandom random) {
        try {
            while (!isEnded) {
                if (hasRoom) {
                    sendOne(random);
                } else {
                    Thread.sleep(TICK_MS);
                }
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private void sendOne(SplittableRandom random) {
        double drawn = random.nextDouble();
        LocalTransactionState state = LocalTransactionState.COMMIT_MESSAGE;
        if (drawn < rolledBack) {
            state = LocalTransactionState.ROLLBACK_MESSAGE;
        } else if (drawn < rolledBack + unanswered) {
            state = LocalTransactionState.UNKNOW;
        }
        Message message = message(random, started.getAndIncrement());
        if (state == LocalTransactionState.UNKNOW) {
            message.setTags(LATE);
        }
        try {
            producer.sendMessageInTransaction(message, state);
        } catch (MQClientException error) {
            if (failed.sum() == 0) {
                error.printStackTrace();
            }
            failed.increment();
            return;
        }
        sent.increment();
        if (state == LocalTransactionState.COMMIT_MESSAGE) {
            committed.increment();
        }
    }

    private Message message(SplittableRandom random, long number) {
        byte[] body = new byte[bodyBytes];
        random.nextBytes(body);
        Message message = new Message(topic, body);
        message.putUserProperty("region", REGIONS[(int) (number % 3)]);
        message.putUserProperty("source", "checkout");
        message.putUserProperty("customer", "c-" + number * 7919 % 100_000);
        message.putUserProperty("trace", Long.toHexString(number * 2_654_435_761L));
        return message;
    }

    /** Lets `main` end, and waits until the client is closed. */
    private void end(CountDownLatch isClosed) {
        isEnded = true;
        try {
            isClosed.await(SETTLE_S + 10, TimeUnit.SECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** Ends each transaction as it was told to; one that is checked has committed. */
    private static final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object state) {
            return (LocalTransactionState) state;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
