import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Whole numbers that one process writes and another reads; the form of bench/counter_file.py. */
final class CounterFile {
    private static final int DIGITS = 20;

    private final FileChannel channel;

    CounterFile(String path) throws IOException {
        channel =
                FileChannel.open(
                        Path.of(path),
                        StandardOpenOption.CREATE,
                        StandardOpenOption.READ,
                        StandardOpenOption.WRITE);
    }

    /** Writes all numbers in one piece, so that no reader sees half of them. */
    void write(long... numbers) throws IOException {
        StringBuilder text = new StringBuilder();
        for (long number : numbers) {
            text.append(String.format("%" + DIGITS + "d", number));
        }
        channel.write(ByteBuffer.wrap(text.toString().getBytes(StandardCharsets.US_ASCII)), 0);
    }

    /** Returns the first number; 0 while nothing was written. */
    long readFirst() throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(DIGITS);
        if (channel.read(bytes, 0) < DIGITS) {
            return 0;
        }
        return Long.parseLong(new String(bytes.array(), StandardCharsets.US_ASCII).strip());
    }
}
