package cases;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.admin.PulsarAdmin;

/**
 * Runs the cases against one broker, several at a time, since most of them wait. Arguments: the service URL, the URL of
 * the REST API, the seconds that a case may take, and the names of the classes. Prints a line for each case:
 * CLASS.METHOD, a tab, and "passed" or the stack trace in base64.
 */
public final class ClientCases {
  private static final int AT_A_TIME = 12;

  private record Started(String name, Future<String> outcome) {}

  public static void main(String[] arguments) throws Exception {
    long within = Long.parseLong(arguments[2]);
    try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build()) {
      String namespace = Broker.prepared(admin);
      ExecutorService threads = Executors.newFixedThreadPool(AT_A_TIME);
      List<Started> started = new ArrayList<>();
      for (int at = 3; at < arguments.length; at++) {
        for (Method method : Class.forName("cases." + arguments[at]).getDeclaredMethods()) {
          if (method.isAnnotationPresent(Case.class)) {
            String name = arguments[at] + "." + method.getName();
            started.add(
                new Started(name, threads.submit(() -> outcome(method, arguments[0], admin, namespace))));
          }
        }
      }
      for (Started each : started) {
        System.out.println(each.name + "\t" + awaited(each.outcome, within));
      }
      threads.shutdownNow();
    }
    // Threads of a case that did not end would keep the process running.
    System.out.flush();
    System.exit(0);
  }

  private static String outcome(Method method, String serviceUrl, PulsarAdmin admin, String namespace) {
    try (Broker broker = new Broker(serviceUrl, admin, namespace)) {
      method.invoke(null, broker);
      return "passed";
    } catch (InvocationTargetException failed) {
      return trace(failed.getCause());
    } catch (Exception wrong) {
      return trace(wrong);
    }
  }

  private static String awaited(Future<String> outcome, long within) throws Exception {
    try {
      return outcome.get(within, TimeUnit.SECONDS);
    } catch (TimeoutException late) {
      outcome.cancel(true);
      return trace(new AssertionError("the case did not end within " + within + " s"));
    }
  }

  private static String trace(Throwable failure) {
    StringWriter text = new StringWriter();
    failure.printStackTrace(new PrintWriter(text, true));
    return Base64.getEncoder().encodeToString(text.toString().getBytes(StandardCharsets.UTF_8));
  }
}
