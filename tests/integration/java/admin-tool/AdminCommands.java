import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * Runs Pulsar's pulsar-admin many times in one JVM, which takes longer to start than a command takes.
 *
 * <p>The argument is the path of client.conf. A line on standard input is one command: its words, each in Base64,
 * blanks between. The answer is one line too: the exit code, what was printed, and what was printed as errors, these
 * two in Base64 behind an equals sign. What is called is what the tool's own main method calls, and Pulsar's own shell
 * for every command: {@code run}, whose answer is the exit code.
 */
public final class AdminCommands {
  private AdminCommands() {}

  public static void main(String[] arguments) {
    int ended = 0;
    PrintStream log = System.err;
    try {
      serve(arguments[0]);
    } catch (Exception | Error problem) {
      problem.printStackTrace(log);
      ended = 70;
    }
    // The tool's threads would keep the JVM.
    Runtime.getRuntime().halt(ended);
  }

  private static void serve(String configuration) throws Exception {
    Properties properties = new Properties();
    try (InputStream file = new FileInputStream(configuration)) {
      properties.load(file);
    }
    // Set once, before the tool first looks: it keeps what it finds.
    PrintStream answers = System.out;
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    ByteArrayOutputStream err = new ByteArrayOutputStream();
    // Some commands close what they print to.
    System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8) {
      @Override
      public void close() {
        flush();
      }
    });
    System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
    PulsarAdminTool tool = new PulsarAdminTool(properties);
    Method run = PulsarAdminTool.class.getDeclaredMethod("run", String[].class);
    run.setAccessible(true);
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      List<String> words = new ArrayList<>();
      for (String word : line.split(" ")) {
        words.add(new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8));
      }
      out.reset();
      err.reset();
      boolean succeeded = (boolean) run.invoke(tool, (Object) words.toArray(new String[0]));
      answers.println((succeeded ? 0 : 1) + " " + encoded(out) + " " + encoded(err));
      answers.flush();
    }
  }

  private static String encoded(ByteArrayOutputStream bytes) {
    return "=" + Base64.getEncoder().encodeToString(bytes.toByteArray());
  }
}
