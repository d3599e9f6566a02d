import java.lang.reflect.Field;
import java.util.LinkedHashSet;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import picocli.CommandLine;

/** Prints the verbs that Pulsar's pulsar-admin has, hidden ones included: "group verb", one a line. */
public final class AdminVerbs {
  private AdminVerbs() {}

  public static void main(String[] arguments) throws Exception {
    Field commander = PulsarAdminTool.class.getDeclaredField("commander");
    commander.setAccessible(true);
    print("", (CommandLine) commander.get(new PulsarAdminTool(new Properties())));
    System.out.flush();
    // The tool's threads would keep the JVM.
    Runtime.getRuntime().halt(0);
  }

  private static void print(String above, CommandLine command) {
    // An alias is the same command again.
    for (CommandLine below : new LinkedHashSet<>(command.getSubcommands().values())) {
      if (below.getSubcommands().isEmpty()) {
        System.out.println(above + below.getCommandName());
      } else {
        print(above + below.getCommandName() + " ", below);
      }
    }
  }
}
